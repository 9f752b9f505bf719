"""The worker's composition root: settings in, providers and tools built, the worker run."""

import asyncio
import signal
from datetime import timedelta
from pathlib import Path

from temporalio.client import Client
from temporalio.worker import Worker

from activities.llm import ModelActivities
from activities.providers.registry import Providers
from activities.tools import ToolActivities
from models.settings import Settings, load_settings
from workflows.agentic_ai_workflow import AgenticAIWorkflow
from workflows.connection import connect, prepare

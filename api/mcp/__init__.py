"""The MCP server at `/mcp`: the verbs of tasks and sessions as tools of the Model Context Protocol (TSK-6).

endpoint.py         `/mcp` in the gateway: streamable HTTP, stateless
server.py           lists the tools and calls them
tools.py            the seven tools
tasks_extension.py  the Tasks extension: handles, `tasks/get`, `tasks/update`, `tasks/cancel`
prompt_tasks.py     a prompt as a task: its status, and what came of it
approvals.py        calls that wait for a decision, as elicitations
errors.py           problems as errors of tools and of JSON-RPC
"""

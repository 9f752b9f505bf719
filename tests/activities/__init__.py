"""Tests of the activities, with fakes only at the outermost edge."""

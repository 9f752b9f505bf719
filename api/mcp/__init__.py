"""The MCP server at `/mcp`: tasks and sessions as tools of the Model Context Protocol (TSK-6).

endpoint.py         `/mcp` in the gateway: streamable HTTP, stateless
server.py           lists the tools and calls them
tools.py            the seven tools
tasks_extension.py  the Tasks extension: handles, `tasks/get`, `tasks/update`, `tasks/cancel`
prompt_tasks.py     a prompt as a task: its status and its result
approvals.py        waiting tool calls as elicitations
errors.py           problems as tool errors and JSON-RPC errors
"""

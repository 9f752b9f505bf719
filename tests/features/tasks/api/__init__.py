"""Tasks over HTTP, on the real server: TSK-1 to TSK-4, TSK-7, AGT-8."""

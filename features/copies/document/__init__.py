"""The exported document, what an import checks in it, and the state that a copy begins with."""

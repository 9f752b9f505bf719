"""One turn: the model is asked and tools are run until there is an answer."""

"""Who sends a request: keys, tokens of an issuer, and sign-in in the browser."""

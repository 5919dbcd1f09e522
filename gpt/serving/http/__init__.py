"""The OpenAI completions protocol over HTTP, in front of the serving engine."""

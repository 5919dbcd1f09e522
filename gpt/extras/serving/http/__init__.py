"""The OpenAI completions protocol and the playground over HTTP, in front of the serving engine."""

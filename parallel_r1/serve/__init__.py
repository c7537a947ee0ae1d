"""An OpenAI-compatible server over the rollout engine, its playground and its terminal client (extra ``serve``).

From the wire inwards: `guard` (keys, limits), `app` (routes), `schema` (bodies), `ask` (a body as requests of
the engine), `worker` (the thread that owns the model), `scribe` (tokens to text), `answer` (text to replies).
"""

"""Numbers that Python accepts but JSON does not contain are refused."""

import pytest
from helpers.api import Serve

BODIES = {
    "/api/threads/t/turns": '{"turns": [{"role": "user", "content": [{"type": "text", "text": "x", "n": NUMBER}]}]}',
    "/api/memories": '{"content": "Ann likes tea.", "metadata": {"n": NUMBER}}',
    "/ai-agent/memories": '{"content": "Ann likes tea.", "metadata": {"n": NUMBER}}',
    "/v1/chat/completions": '{"messages": [{"role": "user", "content": "x"}], "temperature": NUMBER}',
    "/v1/responses": '{"input": "x", "metadata": {"n": NUMBER}}',
    "/v1/conversations": '{"items": [{"role": "user", "content": "x", "n": NUMBER}]}',
}


@pytest.mark.parametrize("number", ["NaN", "1e999", "-Infinity"])
async def test_numbers_that_json_does_not_have_are_refused(serve: Serve, number: str) -> None:
    headers = {"Content-Type": "application/json"}
    async with serve() as api, api.client() as ann:
        for path, body in BODIES.items():
            answer = await ann.post(path, content=body.replace("NUMBER", number), headers=headers)
            assert answer.status_code == (400 if path.startswith("/v1") else 422), path

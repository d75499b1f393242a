"""A call that reports scores takes the steps that docs/architecture.md lists."""

from aiohttp.test_utils import TestClient, TestServer

from shadeproxy.api.control.app import make_control_app
from tests.support.architecture import flow
from tests.support.calls import recorded, steps


async def test_scores_take_the_steps_of_the_page(context, job):
    with recorded() as calls:
        async with TestClient(TestServer(make_control_app(context))) as client:
            answer = await client.post(f"{job}/scores", json={"ids": [1, 2], "scores": [2, 3.5]})
    assert answer.status == 200
    wanted, _ = flow("Scores")
    assert [step for step in wanted if not step.calls <= {*steps(calls)}] == []

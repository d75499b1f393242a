import asyncio

from shadeproxy.core.pace import TurnLimiter, set_done


async def test_few_go_on_at_once():
    pace = TurnLimiter(3)
    assert [pace.turn() for _ in range(3)] == [None] * 3
    await asyncio.sleep(0)
    assert pace.turn() is None


async def test_many_go_on_a_few_in_each_turn_of_the_loop_and_in_order():
    pace, order, turns = TurnLimiter(3), [], []
    turn = 0

    async def step(number):
        if (wait := pace.turn()) is not None:
            await wait
        order.append(number)
        turns.append(turn)

    tasks = [asyncio.create_task(step(number)) for number in range(20)]
    while not all(task.done() for task in tasks):
        turn += 1
        await asyncio.sleep(0)
    assert order == list(range(20))
    assert max(turns.count(one) for one in turns) <= 3


async def test_calls_and_tasks_share_the_turns():
    pace, called = TurnLimiter(2), []
    pace.call(lambda: called.append("at once"))
    assert pace.turn() is None
    pace.call(lambda: called.append("later"))
    waiting = pace.turn()
    assert called == ["at once"]
    await waiting
    assert called == ["at once", "later"]


async def test_who_gave_up_takes_nobody_elses_place_for_ever():
    pace = TurnLimiter(1)
    assert pace.turn() is None
    first, second = pace.turn(), pace.turn()
    first.cancel()
    async with asyncio.timeout(60):
        await second


async def test_waking_twice_is_waking_once():
    future = asyncio.get_running_loop().create_future()
    set_done(future)
    set_done(future)

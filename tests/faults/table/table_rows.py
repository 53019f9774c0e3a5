"""The rows of the fault table: each does harm beside good requests, and notes what became of these."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import aclosing, suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import psutil
from attrs import asdict, define, field
from fault_harness import Watched, standstills
from leftovers import shared_memory
from table_poison import CHILDREN, CLOSES, ENDLESS, FRAMES, KILLERS, LEFT, RAISED, RETURNED, fork
from table_stages import IN_PARENT, STAGE_OF, places

from omni_core.client import AsyncPipe, Pipe, open_async
from omni_core.config.schema import RestartConfig
from omni_core.errors import OmniError, OverloadedError, RequestAbortedError, message_of
from omni_core.protocol.messages import OmniRequest

HANG, MIB = 20.0, 2**20
Poison = tuple[str, str] | None


@define
class Row:
    """Counts of requests. ``recover``: the most seconds until a good one was answered; ``reasons``: the bars that were missed."""

    path: Path
    quick: bool = False
    folder: Path = Path()
    n: int = 0
    hurt: int = 0
    wrong: int = 0
    hung: int = 0
    recover: float = 0.0
    over: bool = False
    case: str = ""
    reasons: list[str] = field(factory=list)

    def begin(self, *case: object) -> float:
        self.n, self.case = self.n + 1, ", ".join(map(str, case))
        self.save()
        return time.monotonic()

    def check(self, held: bool, reason: str, case: str = "") -> None:
        text = f"{case or self.case}: {re.sub('[0-9a-f]{32} |pid [0-9]+', '', reason)}"[:400]
        if not held and text not in self.reasons:
            self.reasons.append(text)
            self.save()

    def took(self, begin: float, limit: float, what: str, case: str = "") -> None:
        self.recover = max(self.recover, seconds := time.monotonic() - begin)
        self.check(seconds <= limit, f"{what} after {seconds:.1f} s", case)

    def numbers(self) -> dict[str, Any]:
        return asdict(self, filter=lambda each, _: each.name not in ("path", "quick", "folder"))

    def save(self) -> None:
        """Write it down: its process may be ended at any time."""
        self.path.write_text(json.dumps(self.numbers()))


async def ask(client: AsyncPipe, place: str, n: int = 1, name: str | None = None, **more: Any) -> list[Any]:
    request = OmniRequest({"n": n, "place": place, **more})
    return [event.data async for event in client.stream(request, name)]


def is_right(n: int, outputs: Any) -> bool:
    expected = [*[n] * (len(outputs) - 1), {"n": n}] if isinstance(outputs, list) else []
    return isinstance(outputs, list) and outputs in (expected, [{key: {"n": n} for key in "ab"}])


async def beside(
    row: Row, client: AsyncPipe, good: int, place: str, poison: Poison = None, spared: bool = True, **more: Any
) -> tuple[Any, float]:
    """Ask good requests with the guilty one in their midst; return its outputs or error, and its seconds. ``spared``: none may be hurt."""
    begin, middle, ended = time.monotonic(), good // 2, [HANG]
    given = [{**more, "poison": poison} if n == middle and poison else more for n in range(good + 1)]
    tasks = [asyncio.create_task(ask(client, place, n, **each)) for n, each in enumerate(given)]
    tasks[middle].add_done_callback(lambda _: ended.append(time.monotonic() - begin))
    _, late = await asyncio.wait(tasks, timeout=HANG)
    seconds = ended[-1]
    for each in late:
        each.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    row.hung += len(late)
    row.check(not late, f"{len(late)} of {good + 1} requests hang" + ", the guilty one too" * (tasks[middle] in late))
    for n, result in enumerate(results):
        if tasks[n] in late or (poison and n == middle):
            continue
        if isinstance(result, BaseException):
            row.hurt += 1
            row.check(not spared, f"a good request failed: {message_of(result, with_type=True)}")
        else:
            row.wrong += not is_right(n, result)
            row.check(is_right(n, result), f"{n} was answered with {result!r}")
    return results[middle], seconds


async def back(row: Row, client: AsyncPipe, place: str, begin: float, limit: float, case: str = "") -> None:
    """Wait until a good request is answered."""
    end, what = begin + limit + 5, "not back, as nothing ended before"
    while not what.startswith("back") and time.monotonic() < end:
        try:
            outputs = await asyncio.wait_for(ask(client, place), end - time.monotonic())
            what = "back" + f", with {outputs}" * (not is_right(1, outputs))
        except (OmniError, TimeoutError) as error:
            what = f"not back, {message_of(error, with_type=True)},"
            await asyncio.sleep(0.05)
    row.took(begin, limit if what == "back" else 0, what, case)


def ours() -> dict[int, str]:
    """Return the living processes that this row has made, whosever children they are now: its mark is in their environment."""
    mark, found = f"OMNI_FAULT_TABLE={os.environ['OMNI_FAULT_TABLE']}".encode(), {}
    for each in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if each.pid != os.getpid() and mark in Path(f"/proc/{each.pid}/environ").read_bytes().split(b"\0"):
                found[each.pid] = f"{each.pid} {' '.join(each.cmdline())[-50:]}"
    return found


def end_ours(pids: Collection[int] | None = None) -> list[int]:
    """End the processes of this row, or those of ``pids`` among them; return which there were."""
    found = [pid for pid in ours() if pids is None or pid in pids]
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


async def gone(row: Row, limit: float, pids: Collection[int] | None = None) -> None:
    """Wait until the processes, or all of this row and the run's folder, are no more; end them then."""

    def left() -> list[str]:
        folders = [] if pids else [str(each) for each in row.folder.glob("omni-*")]
        return [name for pid, name in ours().items() if pids is None or pid in pids] + folders

    begin = time.monotonic()
    while left() and time.monotonic() - begin < limit:
        await asyncio.sleep(0.02)
    row.check(not (names := left()), f"left after {limit} s: {names}")
    row.took(begin, limit + 1, "gone")
    end_ours(pids)


# --- 1, 2, 3, 11: guilty requests ---------------------------------------------------------------------------------------
async def poison(
    row: Row,
    wanted: Sequence[str],
    every: int,
    names: str,
    process: str = "",
    more: Collection[str] = (),
    **fields: Any,
) -> None:
    cases = [(place, kind) for place in wanted for kind in ({} if place == "turn" else RETURNED) | RAISED]
    cases = cases[:: every * (7 if row.quick else 1)] + [("function", kind) for kind in more]
    cases = [each for n, each in enumerate(cases) if each[0] != "turn" or n % 8 == 0]
    while cases and row.hung < 50:
        hung = row.hung
        async with open_async(places(row.folder, names, process, **fields)) as client:
            while cases and row.hung == hung:
                place, kind = cases.pop(0)
                dies, begin = place == "turn" or kind in CLOSES, row.begin(place, kind)
                error, seconds = await beside(row, client, 8 if row.quick else 32, place, (place, kind), not dies)
                row.check(dies or seconds <= 2, f"the guilty one ended after {seconds:.1f} s")
                if dies:
                    await back(row, client, place, begin, 15)
                elif kind in RAISED:
                    stage = getattr(error, "stage", "none") if isinstance(error, OmniError) else "no error of omni"
                    expected = None if place in IN_PARENT else STAGE_OF[place]
                    row.check(stage == expected, f"the guilty one is not named: {stage}, {error!r:.200}")


async def endless(row: Row, hanging: Sequence[str], **fields: Any) -> None:
    """Each case has a pipeline of its own: a process that hangs cannot say what it had of another that dies."""
    few = asyncio.Semaphore(5)

    async def hang(place: str, kind: str) -> None:
        names = {"hop": "hop end", "join": "side join"}.get(stage := STAGE_OF.get(place, place), stage)
        async with few, open_async(places(row.folder, names, **{stage: {"compute_timeout": 3.0, **fields}})) as client:
            await beside(row, client, 4, place)
            pid, begin, case = client.process_ids[stage], row.begin(place, kind), row.case
            try:
                outputs = await asyncio.wait_for(ask(client, place, poison=(place, kind)), HANG)
                error = f"it was answered with {outputs}"
            except TimeoutError:
                row.hung, error = row.hung + 1, f"it hangs, {client.health()[stage]}"
            except OmniError as failure:
                error = "" if getattr(failure, "stage", None) == stage else f"not named, but {failure}"
            row.check(not error, error, case)
            await back(row, client, place, begin, 15, case)
            row.check(pid not in ours(), "the process has not ended", case)

    cases = [hang(place, kind) for kind in list(ENDLESS)[:: 2 if row.quick else 1] for place in hanging]
    for each in await asyncio.gather(*cases, return_exceptions=True):
        row.check(each is None, repr(each))


async def killers(row: Row, retries: int) -> None:
    for kind in list(KILLERS)[: 1 if row.quick else 3]:
        config = places(row.folder, "hop end", restart=RestartConfig(window=15.0), retries=retries)
        async with open_async(config) as client:
            for again in range(12):
                row.begin(kind, f"time {again + 1}")
                error, _ = await beside(row, client, 64 if again < 2 else 8, "route", ("route", kind), retries > 0)
                row.check(isinstance(error, OmniError), f"the guilty one got {error!r:.200}")
            await back(row, client, "route", time.monotonic(), 20)
            if row.reasons:
                return


async def choosing(row: Row) -> None:
    async with open_async(places(row.folder, "function", function=CHOOSING)) as client:
        for place in ("balance", "work_fn"):
            for kind in list(RAISED)[:6]:
                row.begin(place, kind)
                error, _ = await beside(row, client, 32, place, (place, kind))
                row.check(isinstance(error, OmniError), f"the guilty one got {error!r:.200}")


async def timeouts(row: Row) -> None:
    async with open_async(places(row.folder, "function", max_in_flight=4)) as client:
        for timeout in (10**400, 10**400, 10**400, 10**400, 1e308, -(10**400), float("nan"), True):
            begin = row.begin(f"timeout={str(timeout)[:8]}")
            try:
                await client.submit(OmniRequest({"n": 1, "place": "function"}, timeout=timeout))
            except Exception as error:
                row.check(isinstance(error, OmniError), repr(error))
        await back(row, client, "function", begin, 2)


# --- 4, 9, 10: deaths ---------------------------------------------------------------------------------------------------
async def kills(row: Row, retries: int, replicas: int = 1) -> None:
    config = places(row.folder, "function", function={"replicas": replicas}, retries=retries)
    async with open_async(config) as client:
        await beside(row, client, 64, "function")
        for _ in range(6 if row.quick else 20):
            known = {pid: name for name, pid in client.process_ids.items() if pid}  # 0: not started yet
            servers = {pid: "fork server" for pid, command in ours().items() if "forks.main" in command}
            pid, name = random.choice(list((servers | known).items()))
            number = random.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
            begin = row.begin(name, number.name)
            asked = asyncio.create_task(beside(row, client, 63, "function", spared=False, seconds=0.003))
            await asyncio.sleep(random.uniform(0, 0.15))
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            await asked
            await back(row, client, "function", begin, 15)
        await Watched(client).rest()


async def serve(folder: str, kind: str) -> None:
    """Be a parent under load until a signal ends it."""
    async with open_async(places(Path(folder), "function hop end")) as client:
        await ask(client, "function", poison=("function", kind) if kind else None)
        print("serves", flush=True)
        while True:
            await beside(Row(Path(os.devnull)), client, 64, "route", spared=False)


async def parent_ends(row: Row, number: signal.Signals, kind: str = "") -> None:
    command = [sys.executable, str(Path(__file__).with_name("run.py")), "--serve", str(row.folder), kind]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout
    assert await asyncio.wait_for(process.stdout.readline(), 60) == b"serves\n"
    await asyncio.sleep(0.3)  # requests are in flight from now on
    process.send_signal(number)
    await gone(row, 2)
    await process.wait()


async def parents(row: Row) -> None:
    for name in ("SIGKILL", "SIGSEGV", "SIGABRT", "SIGINT", "SIGTERM", "SIGHUP"):
        row.begin(name)
        await parent_ends(row, signal.Signals[name])


async def folder_removed(row: Row) -> None:
    async with open_async(places(row.folder, "function")) as client:
        for name in ("function", "entry"):
            begin = row.begin(f"{name} dies")
            for each in row.folder.glob("omni-*"):
                shutil.rmtree(each)
            os.kill(client.process_ids[name], signal.SIGKILL)
            await asyncio.sleep(0.2)
            await back(row, client, "function", begin, 10)


def use(pipe: Pipe, how: str) -> None:
    """Use the parent's pipeline in a fork; exit with 7 if that is an error."""
    request = OmniRequest({"n": 5, "place": "function"})
    uses = {"submit": lambda: pipe.submit(request), "stream": lambda: list(pipe.stream(request)), "health": pipe.health}
    try:
        (uses | {"close": pipe.close, "nothing": lambda: None})[how]()
    except (OmniError, RuntimeError):
        sys.exit(7)


async def parent_forks(row: Row) -> None:
    with await asyncio.to_thread(Pipe, open_async(places(row.folder, "function"))) as pipe:
        for how in ("submit", "stream", "health", "close", "nothing"):
            begin, child = row.begin(how), fork.Process(target=use, args=(pipe, how))
            child.start()
            await asyncio.to_thread(child.join, 3)
            row.took(begin, 2, "the child ended")
            row.check(
                child.exitcode == (0 if how == "nothing" else 7) or how == "close", f"it exits with {child.exitcode}"
            )
            child.kill()
            answer = asyncio.to_thread(pipe.submit, OmniRequest({"n": 5, "place": "function"}))
            row.check(await asyncio.wait_for(answer, HANG) == {"function": {"n": 5}}, "the parent's answer is wrong")


# --- 5: children of stages ----------------------------------------------------------------------------------------------
async def children(row: Row) -> None:
    async with open_async(places(row.folder, "function")) as client:
        for kind in list(CHILDREN) * (1 if row.quick else 3):
            row.begin(kind)
            outcome, _ = await beside(row, client, 32, "function", ("function", kind))
            row.check(is_right(16, outcome), f"it got {outcome!r:.200}")


async def left(row: Row, end: str) -> None:
    for kind in LEFT:
        row.begin(kind)
        shared = set(os.listdir("/dev/shm"))
        if end == "the parent":
            await parent_ends(row, signal.SIGKILL, kind)
        else:
            async with open_async(places(row.folder, "function")) as client:
                await ask(client, "function")
                before = ours()
                await ask(client, "function", poison=("function", kind))
                made = ours().keys() - before
                row.check(bool(made), "no child was made")
                if end == "the stage":
                    os.kill(client.process_ids["function"], signal.SIGKILL)
                    await gone(row, 5, made)
                    await back(row, client, "function", time.monotonic(), 15)
            await gone(row, 5)
        row.check(not (names := shared_memory(shared)), f"left in /dev/shm: {names}")


# --- 6, 7, 8: too much --------------------------------------------------------------------------------------------------
def highest(pid: int | str = "self") -> float:
    """Return the highest memory of a process, in MiB, and begin anew."""
    (peak,) = re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return int(peak) / 1024


STRANGER = """import socket, sys
links = [socket.socket(socket.AF_UNIX) for _ in sys.argv[2:]]
for link, path in zip(links, sys.argv[2:]):
    link.connect(path)
    link.send(bytes.fromhex(sys.argv[1]))
sys.stdin.read()"""


async def stray(row: Row) -> None:
    async with open_async(places(row.folder, "function generator")) as client:
        await asyncio.gather(*(beside(row, client, 32, place) for place in ("function", "generator")))
        for name, poison in product(FRAMES, (None, "a stage")):
            begin, before = row.begin(name, poison or "a stranger"), highest() and highest()
            with standstills() as seen:
                sick = beside(row, client, 16, "function", ("function", name) if poison else None, not poison)
                asked = asyncio.gather(sick, beside(row, client, 16, "generator"))
                if not poison:
                    command = [
                        sys.executable,
                        "-c",
                        STRANGER,
                        FRAMES[name].hex(),
                        *map(str, row.folder.glob("*/*.sock")),
                    ]
                    stranger = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
                    await beside(row, client, 16, "function")
                    await stranger.communicate(b"")
                await asked
                await back(row, client, "function", begin, 15)
            row.check(max(seen)[0] < 1, f"the loop stood still for {max(seen)[0]:.1f} s: {max(seen)[1][:100]}")
            row.check((grown := highest() - before) < 64, f"the parent took {grown:.0f} MB")


async def flood(row: Row, names: str, pause: float, bar: float, **more: Any) -> None:
    """A generator makes much more than the client, after each ``pause``, or the next stage, after 0.2 s, takes."""
    async with open_async(places(row.folder, names)) as client:
        place = "sip" if "sip" in names else "generator"

        async def read() -> None:
            async with aclosing(client.stream(OmniRequest({"n": 1, "place": place, **more}))) as events:
                async for _ in events:
                    await asyncio.sleep(pause)

        await beside(row, client, 0, place)
        pids = {**client.process_ids, "the parent": os.getpid()}
        before = {name: highest(pid) and highest(pid) for name, pid in pids.items()}
        row.begin(place)
        with suppress(TimeoutError):
            await asyncio.wait_for(read(), 5 if row.quick else 8)
        begin = time.monotonic()
        await beside(row, client, 0, place)
        row.took(begin, 2, "another was answered")
        for name, pid in pids.items():
            row.check((grown := highest(pid) - before[name]) < bar, f"{name} took {grown:.0f} MB")


async def overload(row: Row) -> None:
    async with open_async(places(row.folder, "function", max_in_flight=256)) as client:
        row.begin("10,000 at once")
        await beside(row, client, 200, "function")
        await (pipeline := Watched(client)).remember()
        asked = (ask(client, "function", n) for n in range(10_000))
        results = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)
        refused = sum(isinstance(each, OverloadedError) and each.retry_after > 0 for each in results)
        answered = sum(is_right(n, each) for n, each in enumerate(results))
        row.n, row.hurt = 10_000, 10_000 - refused - answered
        row.check(not row.hurt and answered >= 256, f"{answered} answered, {refused} refused")
        await pipeline.as_before()


async def aborted(row: Row) -> None:
    at_once = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}  # freed memory is returned
    async with open_async(places(row.folder, "hop end", max_in_flight=2000, env_defaults=at_once)) as client:
        row.begin("1 MB each, half aborted")
        await beside(row, client, 200, "route", nbytes=MIB)
        await (pipeline := Watched(client)).remember()
        before = psutil.Process().memory_full_info().uss
        asked = [asyncio.create_task(ask(client, "route", n, f"a{n}", nbytes=MIB)) for n in range(1500)]
        for n in range(0, 1500, 2):
            await asyncio.sleep(random.uniform(0, 0.004))
            asked[n].cancel() if n % 4 else await client.abort(f"a{n}")
        results = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)
        ended = (asyncio.CancelledError, RequestAbortedError)
        row.n = 1500
        row.wrong = sum(isinstance(each, list) and not is_right(n, each) for n, each in enumerate(results))
        row.hurt = sum(not isinstance(each, list if n % 2 else (list, *ended)) for n, each in enumerate(results))
        row.check(not row.wrong + row.hurt, f"{row.hurt} hurt, {row.wrong} wrong")
        await pipeline.as_before()
        grown = (psutil.Process().memory_full_info().uss - before) / MIB
        row.check(grown < 32, f"the parent keeps {grown:.0f} MB")


ALL = "function generator batch steps own hop end side join parts parcel"
CHOOSING = {"replicas": 2, "balance": "table_stages:balance", "work_fn": "table_stages:work"}
RUNNER = {"factory": None, "model_runner": "table_engine:create_runner", "scheduler": "engine"}
HANGING = ["function", "generator", "batch", "begin", "step", "is_done", "route", "projection", "wait_for", "merge"]
INSIDE = [place for place in STAGE_OF if place not in ("sip", "engine")]
SAFE = [place for place in INSIDE if place not in ("turn", "encode", "decode")]
APART = partial(poison, names=ALL, wanted=INSIDE, every=5, more=CLOSES, function={"compute_timeout": 3.0})
ROWS: dict[str, tuple[float, Callable[[Row], Coroutine[Any, Any, None]]]] = {
    "1 poison, processes apart": (150, APART),
    "1 poison, one process": (60, partial(poison, names=ALL, process="all", wanted=SAFE, every=13)),
    "1 poison, functions in the parent": (
        60,
        partial(poison, names="function", function=CHOOSING, wanted=IN_PARENT, every=1),
    ),
    "2 endless compute, functions and steps": (120, partial(endless, hanging=HANGING)),
    "2 endless compute, own scheduler": (40, partial(endless, hanging=["own"])),
    "2 endless compute, engine": (60, partial(endless, hanging=["engine"], **RUNNER)),
    **{f"3 killers, retries {each}": (90, partial(killers, retries=each)) for each in (0, 1, 3)},
    "4 random kills, retries 0": (40, partial(kills, retries=0)),
    "4 random kills, retries 1": (40, partial(kills, retries=1)),
    "4 random kills, retries 3, 2 replicas": (40, partial(kills, retries=3, replicas=2)),
    "5 children, ended by the stage": (40, children),
    **{
        f"5 children left, {end} ends": (40, partial(left, end=end))
        for end in ("the pipeline", "the stage", "the parent")
    },
    "6 stray bytes on control sockets": (60, stray),
    "7 slow client": (30, partial(flood, names="generator", pause=0.2, bar=128, chunks=600, nbytes=MIB)),
    "7 slow next stage": (30, partial(flood, names="source sip", pause=0, bar=128, chunks=600, nbytes=MIB)),
    "7 endless small values, client": (30, partial(flood, names="generator", pause=0, bar=64, chunks=10**12)),
    "7 endless small values, next stage": (30, partial(flood, names="source sip", pause=0, bar=64, chunks=10**12)),
    "8 overload": (60, overload),
    "8 aborted requests": (60, aborted),
    "9 parent killed": (60, parents),
    "10 run folder removed": (60, folder_removed),
    "10 parent forks": (30, parent_forks),
    "11 exits in balance and work_fn": (30, choosing),
    "11 timeouts that are no seconds": (30, timeouts),
}
"""By name: the most seconds, and the work."""

"""The order in which requests run again after the death of a process.

A process that dies takes every request that it held with it, and one of them may be the cause. Each of them is a *suspect*: it runs
again with no other suspect beside it, the youngest first. If a process dies with the running suspect in it, that suspect is the
cause, and the other suspects of the same death run again at once; what it ended does not count against the process. So with one
retry, a request that ends its process costs two deaths, and the other requests nothing but time: where no request was the cause,
all of them run again one after another. A request whose client has sent nothing of its input yet may last as long as that client likes, so
it takes no turn and runs again at once.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

from attrs import define, frozen

from omni_core.coordinator.tracked_request import TrackedRequest

MOST_ATTEMPTS_BEYOND_RETRIES = 6
"""Attempts of one request that may end by deaths for which other requests were found to be the cause."""

REMEMBERED_KILLERS = 1_000
REMEMBERED_SECONDS = 600.0
"""Seconds for which the content of a request that ended its process is remembered."""

MOST_EXCUSED = 20
"""Deaths in a row, without a completed request between them, that requests may be the cause of. Further ones count against the process: it
may be the one that cannot serve any request.
"""

MOST_BLAMED = 64
"""Requests of one death without a known cause whose contents are remembered, the youngest."""

_DOUBT, _CAUSE = 1, 2
_RUNS_ALONE, _REFUSED = 2, 6
"""The blame of a content for one death, as one of several that were there or as the cause; and what follows from so much of it."""

QUIET_SECONDS = 5.0
"""Seconds that the cause of a death waits for the other requests to end, and that new requests wait for its end at most."""


@frozen
class Verdict:
    """The outcome of one death: requests that fail, and requests that run again at once."""

    failed: list[TrackedRequest]
    again: list[TrackedRequest]


@define
class _Content:
    """A content that has been in processes that died, with no request of it completed since."""

    until: float
    blame: int = 0
    reason: str = ""


class Suspects:
    """The suspects that wait for their turn, the one that runs, and the contents that are known to end a process.

    Args:
        retries: deaths of its process that a request survives.
    """

    def __init__(self, retries: int) -> None:
        self._retries = retries
        self._waiting: deque[TrackedRequest] = deque()
        self._deaths = 0
        self._excused = 0
        self._killers: OrderedDict[bytes, _Content] = OrderedDict()
        self.alone: TrackedRequest | None = None
        """The suspect that runs."""

    def __len__(self) -> int:
        return len(self._waiting)

    def died(self, lost: list[TrackedRequest], now: float, excuse: Callable[[], None] = lambda: None) -> Verdict:
        """Decide what happens after one death.

        Args:
            lost: the requests that the process held, in the order of their admission.
            excuse: called when a request is found to be the cause of this death, now or at a later one.
        """
        self._deaths += 1
        for each in lost:
            each.excuses.append(excuse)
        silent = [each for each in lost if each.input is not None and each.may_repeat]
        if silent:
            return self._again(silent, [each for each in lost if each not in silent], now)
        return self._judge(lost, now)

    def _judge(self, lost: list[TrackedRequest], now: float) -> Verdict:
        suspect = self.alone if self.alone in lost else None
        if suspect is not None:
            self.alone = None
        causes = [each for each in lost if each.is_cause]
        if not causes and suspect is not None and len(lost) > 1 and not suspect.had_doubt:
            # The cause may be a newer request: one more turn, in which the newer ones are suspects too.
            suspect.had_doubt = True
            return self._suspect([each for each in lost if each is not suspect], first=suspect)
        if not causes and (suspect is not None or len(lost) == 1):
            causes = [suspect or lost[0]]
        if not causes:
            return self._suspect(lost)
        again, failed = [each for each in lost if each not in causes], []
        for cause in causes:
            cause.strikes += 1
            again += self._release(cause.death)
            if cause.death or cause.is_cause:
                self._excuse(cause)
            if cause.death:  # its second
                cause.is_cause, cause.quiet_until = True, now + QUIET_SECONDS
            cause.death = cause.death or self._deaths
            if self._may_run(cause):
                self._waiting.append(cause)
            else:
                failed.append(cause)
        failed += [each for each in again if not self._may_run(each)]
        return Verdict(failed, [each for each in again if self._may_run(each)])

    def _again(self, silent: list[TrackedRequest], others: list[TrackedRequest], now: float) -> Verdict:
        for each in silent:
            each.strikes += 1
        verdict = self._judge(others, now) if others else Verdict([], [])
        failed = [each for each in silent if not self._may_run(each)]
        if failed == silent and len(silent) == 1 and not others:  # it was alone again
            self._excuse(silent[0])
        again = [each for each in silent if self._may_run(each)]
        return Verdict(verdict.failed + failed, verdict.again + again)

    def _excuse(self, cause: TrackedRequest) -> None:
        """The deaths that a request was in say nothing about the process: it is the cause of the last one for certain."""
        self._excused += 1
        if self._excused <= MOST_EXCUSED:
            for excuse in cause.excuses:
                excuse()
        cause.excuses.clear()

    def completed(self) -> None:
        """Take in that a request has completed: processes can serve."""
        self._excused = 0

    def _suspect(self, lost: list[TrackedRequest], first: TrackedRequest | None = None) -> Verdict:
        for each in lost:
            each.strikes += 1
            each.death = self._deaths
        lost = lost if first is None else [*lost, first]
        self._waiting.extendleft(each for each in lost if self._may_run(each))
        return Verdict([each for each in lost if not self._may_run(each)], [])

    def _release(self, death: int) -> list[TrackedRequest]:
        """Release the waiting suspects of a death whose cause was found."""
        released = [each for each in self._waiting if death and each.death == death]
        for each in released:
            self._waiting.remove(each)
            each.strikes, each.death = each.strikes - 1, 0
            each.excuses.clear()
        return released

    def _may_run(self, request: TrackedRequest) -> bool:
        limit = self._retries + MOST_ATTEMPTS_BEYOND_RETRIES if self._retries else 0
        return request.strikes <= self._retries and request.attempts <= limit and request.may_repeat

    def put(self, request: TrackedRequest, now: float) -> None:
        """Let a new request whose content is known wait for a turn alone. Its next death is its last."""
        request.is_cause, request.strikes, request.quiet_until = True, self._retries, now + QUIET_SECONDS
        self._waiting.append(request)

    def drop(self, request: TrackedRequest) -> None:
        """Forget a request that has ended."""
        if self.alone is request:
            self.alone = None
        elif request in self._waiting:
            self._waiting.remove(request)

    def next(self, running: int, now: float) -> TrackedRequest | None:
        """The suspect to start now, if its turn has come, while ``running`` requests run."""
        if self.alone is not None or not self._waiting:
            return None
        first = self._waiting[0]
        if running and now < first.quiet_until:
            return None
        self.alone = self._waiting.popleft()
        return self.alone

    @property
    def holds_others(self) -> bool:
        """True while the cause of a death runs again: new requests wait."""
        return self.alone is not None and self.alone.is_cause

    def blame_lost(
        self, lost: TrackedRequest, victims: list[TrackedRequest], digest: bytes | None, reason: str, now: float
    ) -> None:
        """Remember the content of a request that fails because its process died with all of ``victims``, if that says something."""
        causes = lost.strikes if lost.is_cause and lost.attempts > 1 else int(lost.is_cause or len(victims) == 1)
        if causes or (not self._retries and lost in victims[-MOST_BLAMED:]):
            self.blame(digest, causes, reason, now)

    def blame(self, digest: bytes | None, causes: int, reason: str, now: float) -> None:
        """Remember the content of a request that was in a process when it died, by its digest if it has one.

        Args:
            causes: deaths that it was the cause of, or was alone in; 0: it was there with others at one.
        """
        if digest is None:
            return
        content = self._killers.pop(digest, None) or _Content(now)
        content.until, content.reason = now + REMEMBERED_SECONDS, reason
        content.blame += causes * _CAUSE or _DOUBT
        self._killers[digest] = content
        if len(self._killers) > REMEMBERED_KILLERS:
            self._killers.popitem(last=False)

    def absolve(self, digest: bytes | None) -> None:
        """Forget a content: a request of it has completed."""
        if digest is not None:
            self._killers.pop(digest, None)

    def knows_any(self, now: float) -> bool:
        """Return whether any content is remembered; then new requests are compared with it."""
        while self._killers and next(iter(self._killers.values())).until <= now:
            self._killers.popitem(last=False)
        return bool(self._killers)

    def knows(self, digest: bytes) -> bool:
        """Return whether requests of this content must run alone."""
        content = self._killers.get(digest)
        return content is not None and content.blame >= _RUNS_ALONE

    def refusal(self, digest: bytes, now: float) -> str:
        """Return why requests of this content are refused; empty if they are not."""
        content = self._killers.get(digest)
        if content is None or content.blame < _REFUSED:
            return ""
        return (
            f"requests with this content have ended their process several times, the last time {content.reason}; "
            f"they are refused for {content.until - now:.0f} s more"
        )

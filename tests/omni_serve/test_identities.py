"""Random identities: none twice, also not in threads and in forks."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from omni_serve.identities import random_hex


def test_identities_have_their_length_and_never_come_twice() -> None:
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda _: random_hex(12), range(4000)))
    assert len(set(made)) == len(made)
    assert {len(each) for each in made} == {24}
    assert [len(random_hex(count)) for count in (10, 16, 4096)] == [20, 32, 8192]


def test_a_fork_gives_out_others() -> None:
    random_hex(12)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, random_hex(12).encode())
        os._exit(0)
    mine = random_hex(12)
    os.waitpid(child, 0)
    assert os.read(reader, 100).decode() != mine
    os.close(reader)
    os.close(writer)

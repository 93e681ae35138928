"""Messages that wait to be sent, and whose is next."""

from opdbus.bus.transport.send_queue import SendQueue, Written


def drained(outbox: SendQueue, step: int = 1 << 20) -> list[bytes]:
    """Send everything, so many bytes at a time, and give it message by message."""
    sent, parts = [], b""
    while outbox.size:
        data, _ = outbox.next()
        parts += data[:step]
        outbox.sent(min(step, len(data)))
        if len(data) <= step:
            sent.append(parts)
            parts = b""
    return sent


def test_one_receiver_gets_all_in_order() -> None:
    """Keep the order of the messages for one receiver, also where they are sent in parts."""
    outbox = SendQueue()
    messages = [b"%d" % number * 50 for number in range(9)]
    for message in messages:
        outbox.enqueue(Written(message, destination=":1.1"))
    assert outbox.size == outbox.size_of(":1.1") == sum(map(len, messages))
    assert drained(outbox, step=7) == messages
    assert outbox.size == outbox.size_of(":1.1") == 0


def test_a_client_that_was_sent_little_comes_first() -> None:
    """Send the one message of a receiver before the rest of the hundred for another."""
    outbox = SendQueue()
    for number in range(100):
        outbox.enqueue(Written(b"%03d" % number, destination=":1.1"))
    outbox.next()
    outbox.sent(1)
    outbox.enqueue(Written(b"one", destination=":1.2"))
    assert drained(outbox)[:3] == [b"00", b"one", b"001"]


def test_clients_that_come_again_and_again_do_not_come_first() -> None:
    """Have each receiver wait for one message of every other, however often they come anew."""
    outbox = SendQueue()
    for number in range(5):
        outbox.enqueue(Written(b"%d" % number, destination=f":1.{number}"))
    outbox.enqueue(Written(b"friend", destination=":2.0"))
    order = []
    while b"friend" not in order:
        data, _ = outbox.next()
        order.append(bytes(data))
        outbox.sent(len(data))
        outbox.enqueue(Written(data, destination=f":1.{data[0] - ord('0')}"))
    assert len(order) <= 6


def test_files_go_with_the_first_byte() -> None:
    """Give the files of a message once, with the whole of it."""
    outbox = SendQueue()
    outbox.enqueue(Written(b"message", [object()]))  # type: ignore[list-item] -- only handed through
    assert len(outbox.next()[1]) == 1
    outbox.sent(3)
    assert outbox.next() == (b"sage", ())

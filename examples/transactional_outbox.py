"""Store an order and its job in one transaction: both are stored, or neither."""

import tempfile
from pathlib import Path

import holdfast
from holdfast import Done


class CardError(Exception):
    """The payment was declined."""


def place_order(queue: holdfast.Queue, number: int, *, card_works: bool) -> None:
    with queue.transaction() as tx:
        tx.execute("insert into orders (number, state) values (?, 'placed')", (number,))
        tx.enqueue("invoice.send", {"order": number}, job_id=f"invoice-{number}")
        if not card_works:
            raise CardError


def send_invoice(queue: holdfast.Queue) -> None:
    claim = queue.claim(kinds=["invoice.send"], worker="mailer-1")
    if claim is None:
        raise SystemExit("nothing to do")
    # The order changes only if this attempt settles the job.
    with queue.transaction() as tx:
        tx.execute("update orders set state = 'invoiced' where number = ?", (claim.job.payload["order"],))
        tx.settle(claim, Done())


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, holdfast.connect(str(Path(folder) / "shop.db")) as queue:
        with queue.transaction() as tx:
            tx.execute("create table orders (number integer primary key, state text not null)")

        place_order(queue, 1, card_works=True)
        try:
            place_order(queue, 2, card_works=False)
        except CardError:
            print("order 2 was rolled back, and its job with it")
        print(f"jobs stored: {[job.id for job in queue.jobs()]}")

        send_invoice(queue)
        with queue.transaction() as tx:
            print(f"orders: {[tuple(row) for row in tx.execute('select number, state from orders')]}")


if __name__ == "__main__":
    main()

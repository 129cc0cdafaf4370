"""One repetition: the same disturbed topic for both products, both killed in the middle.

Figures are named `<product>.<query>.<figure>`, and `<product>.<figure>` where they are of all
queries. `calm_…` is of records that were sent well before the kill, `killed_…` of those from there
on.
"""

from __future__ import annotations

import itertools
import time
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from benchmarks.cdc.world import running
from benchmarks.disturbed.by_pathway import ByPathway
from benchmarks.disturbed.by_penstock import ByPenstock
from benchmarks.disturbed.disorder import disturbed
from benchmarks.disturbed.oracle import QUERIES, answers, compared, needed
from benchmarks.disturbed.sending import Product, Sending, Sent, make_topics
from benchmarks.harness import Context, Figures, Result

NAME = "disturbed"
PRODUCTS = ("penstock", "pathway")
CONDITIONS = (
    "one topic of JSON records, a twentieth late by one to ten minutes, a twentieth sent twice, "
    "none in order; both products read it at the same time, and both are killed by SIGKILL once. "
    f"penstock: {ByPenstock.promise}. pathway: {ByPathway.promise}. From sending a record to the "
    "Delta commit (pathway: the broker's time of the change) that shows its effect; Kafka, the "
    "load and both products share the cores"
)
_FIRST, _SETTLED_S = 200, 300.0
"""Records that are sent before the products start; they begin to be measured once these are in."""


def add_options(parser: ArgumentParser) -> None:
    """Add the load, and which products."""
    group = parser.add_argument_group("disturbed")
    group.add_argument("--disturbed-rate", type=float, default=500.0, help="records/s (500)")
    group.add_argument("--disturbed-seconds", type=float, default=60.0, help="of sending (60)")
    group.add_argument("--disturbed-seed", type=int, default=1, help="of the records (1)")
    group.add_argument(
        "--disturbed-products", nargs="+", choices=PRODUCTS, default=PRODUCTS, help="only these"
    )
    group.add_argument("--disturbed-ports", type=int, default=30_000, help="the lowest (30000)")


def run(context: Context) -> Figures:
    """Let both products read the same records, kill both, and compare what they say."""
    options = context.options
    world = context.once(
        "world", lambda: running(context.folder, context.progress, options.disturbed_ports)
    )
    topic, bootstrap = f"disturbed_{context.repetition}", world.settings.required("kafka.bootstrap")
    make_topics(bootstrap, [topic, *(f"{topic}.{query}" for query in QUERIES)])
    made: dict[str, Callable[[], Product]] = {
        "penstock": lambda: ByPenstock(world, topic),
        "pathway": lambda: ByPathway(bootstrap, topic, context.folder / topic, context.progress),
    }
    products = {name: made[name]() for name in PRODUCTS if name in options.disturbed_products}
    try:
        figures, sent = _disturb(context, bootstrap, topic, products)
        for name, product in products.items():
            figures |= _named(name, _judged(product, sent))
    finally:
        for product in products.values():
            product.stop()
    context.notes["promises"] = {name: product.promise for name, product in products.items()}
    for line in _lines(figures):
        context.progress(f"  {line}")
    world.forget()
    return figures


def summary(result: Result) -> str:
    """Return a line for each product and query, as Markdown."""
    rows = [
        "| product | query | equal | missing | extra | different | calm p50 · p95 | after kill |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    medians = {name: figure.median for name, figure in result.figures.items()}
    return "\n".join(rows + _lines(medians))


def _lines(figures: Mapping[str, float]) -> list[str]:
    found = []
    for product, query in itertools.product(PRODUCTS, QUERIES):
        own = {
            name.rpartition(".")[2]: value
            for name, value in figures.items()
            if name.startswith(f"{product}.{query}.")
        }
        if own:
            counts = " | ".join(
                f"{own[f'rows_{what}']:,.0f}" for what in ("equal", "missing", "extra", "different")
            )
            calm = f"{own['calm_p50_s']:.2f} · {own['calm_p95_s']:.2f} s"
            killed = f"{own['killed_max_s']:.1f} s"
            found.append(f"| {product} | {query} | {counts} | {calm} | {killed} |")
    return found


def _disturb(
    context: Context, bootstrap: str, topic: str, products: Mapping[str, Product]
) -> tuple[dict[str, float], Sent]:
    """Send all records, kill and start the products meanwhile; return processor time by product."""
    options = context.options
    rate, seconds = options.disturbed_rate, options.disturbed_seconds / (2 if options.quick else 1)
    records = disturbed(options.disturbed_seed + context.repetition, round(rate * seconds), rate)
    warm, rest = (
        Sending(bootstrap, topic, part, rate) for part in (records[:_FIRST], records[_FIRST:])
    )
    with ThreadPoolExecutor() as threads:
        warm.start()
        list(threads.map(lambda each: each.start(), products.values()))
        warm.end()
        began, spent = rest.start(), {name: each.cpu_s() for name, each in products.items()}
        time.sleep(max(0.0, began + seconds / 2 - time.time()))
        killed = time.time()
        calm = {name: each.kill() - spent[name] for name, each in products.items()}
        context.progress(f"  killed after {killed - began:.1f} s")
        list(threads.map(lambda each: each.start(), products.values()))
        ended = rest.end()
    sent = Sent(
        at=rest.sent_at | warm.sent_at,
        began=began,
        killed=killed,
        records=len(records),
        expected=answers(records),
        needed=needed(records),
    )
    figures = {
        "records": float(len(records)),
        "doubles": float(len(records) - len(sent.at)),
        "records_per_s": (len(records) - _FIRST) / (ended - began),
    }
    for name, product in products.items():
        settled = product.settled(sent, _SETTLED_S)
        context.progress(f"  {name}: {'all is in' if settled else 'not all came'}")
        figures[f"{name}.calm_cores"] = calm[name] / (killed - began)
        figures[f"{name}.cpu_s"] = product.cpu_s() - spent[name]
    return figures, sent


def _judged(product: Product, sent: Sent) -> dict[str, float]:
    rows, seen, found = product.rows(), product.seen(sent), dict[str, float]()
    for query in QUERIES:
        own = compared(rows[query], sent.expected[query]) | sent.ages(query, seen[query])
        found |= _named(query, own)
    return found | product.figures(sent)


def _named(whose: str, figures: Mapping[str, float]) -> dict[str, float]:
    return {f"{whose}.{name}": value for name, value in figures.items()}

"""Those who look on at a run: over its control address, on its page, and the trackers that its numbers go to.

Invariants:

- Ports are taken before anything is started, so an address that was chosen and cannot be had starts nothing. Nobody is
  answered before the run folder is there.
- Whatever becomes of them, they neither hold up the run nor end it. At its end the addresses close with its parts; the
  trackers are waited for, in bounded time, once ``summary.json`` is there: they send that too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path

from prl.config import Config
from prl.control.prometheus import metrics_route
from prl.control.route import Route
from prl.control.server import ControlServer
from prl.evaluate import Evaluation
from prl.failure import running
from prl.figures import Figures, Snapshot
from prl.metrics import StepReport
from prl.status import Status
from prl.trackers.feed import Feed
from prl.view.beside import Page


class Onlookers:
    """See the module: ``bind``, then ``open``; ``close`` after everything else.

    Args:
        config: the whole configuration.
        run_dir: where the run writes.
        on_page: told where the page is, once that can be opened; absent, there is none.
    """

    def __init__(self, config: Config, run_dir: Path, on_page: Callable[[str], None] | None) -> None:
        self._config, self._run_dir, self._on_page = config, run_dir, on_page
        self._page = Page(config.view, run_dir)
        self._trackers, self._figures = Feed(config, run_dir), Figures()
        self._control: ControlServer

    def bind(self, stack: AsyncExitStack, routes: Iterable[Route], snapshot: Callable[[], Snapshot]) -> None:
        """Take the ports.

        Args:
            stack: gives them back.
            routes: what the run answers at its control address.
            snapshot: what it answers a monitoring system there.

        Raises:
            ConfigError: the configuration names an address or a port that cannot be had.
        """
        self._control = ControlServer(self._config.control, self._run_dir, [*routes, metrics_route(snapshot)])
        self._control.bind()
        stack.push_async_callback(self._control.close)
        if self._on_page is not None:
            self._page.bind()
            stack.callback(self._page.close)

    async def open(self, stack: AsyncExitStack, first_step: int) -> None:
        """Answer from now on until ``stack`` is closed, and start the trackers; ``first_step`` steps are done."""
        await self._control.open()
        if self._on_page is not None and self._page.url is not None:
            await stack.enter_async_context(running(self._page.serve()))
            self._on_page(self._page.url)
        await self._trackers.open(first_step)
        await stack.enter_async_context(running(self._trackers.watch()))

    def add(self, report: StepReport) -> None:
        """Count a step."""
        self._figures.add(report)

    def snapshot(self, status: Status, evaluation: Evaluation | None) -> Snapshot:
        """What a monitoring system is told at this moment."""
        run, model, figures = self._config.run.name, self._config.model, self._figures.copied()
        return Snapshot(run, model, status, figures, evaluation, self._trackers.states())

    async def close(self, num_steps: int) -> None:
        """Wait, in bounded time, until the trackers have sent what there is of ``num_steps`` steps."""
        await self._trackers.close(num_steps)

"""The report page in a real browser (``make test-page``): loading, hovering, choosing, keys, screenshots."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "report")]

from browser import Browser  # noqa: E402
from made_runs import make_gif, make_result, make_run  # noqa: E402

from capo.cli import main  # noqa: E402

SCREENSHOTS = HERE.parents[1] / "runs" / "page"
TOPS = {"ncapo": 50, "ppo": 32, "a2c": 12, "rainbow": 10, "offpac": 5}
NASTY = "<script>window.hacked = 1<\u2044script>"  # a folder's name; a real slash can't be in one


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two games with five algorithms, one of them with a seed that stopped, and a run of something else."""
    root = tmp_path_factory.mktemp("runs")
    for env, scale in (("minatar-breakout", 1.0), ("minatar-seaquest", 0.6)):
        for algorithm, top in TOPS.items():
            if (env, algorithm) != ("minatar-seaquest", "rainbow"):
                stops = {3: 60} if algorithm == "a2c" else None
                make_run(root / f"{env}-{algorithm}", env, algorithm, top=top * scale, stops=stops)
    make_run(root / NASTY, "CartPole-v1", "ncapo", seeds=(0,), top=450)
    make_gif(root / "minatar-breakout-ncapo" / "play.gif")
    out = root / "report.html"
    assert main(["report", str(root), "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as one:
        yield one


def choose(browser: Browser, name: str) -> None:
    index = browser.evaluate(
        f"[...document.querySelectorAll('input[name=env]')].findIndex("
        f"e => e.nextElementSibling.textContent === {json.dumps(name)})"
    )
    browser.click(f"input[name=env][value='{index}']")
    browser.wait(f"document.querySelector('#h-curves').textContent.includes({json.dumps(name)})")
    browser.wait("document.querySelector('.chart path.curve')")


def tooltip(browser: Browser) -> str:
    return str(browser.evaluate("(t => t.hidden ? '' : t.innerText)(document.querySelector('#curves .tooltip'))"))


def test_it_loads_alone_and_without_complaints(browser: Browser, page: Path) -> None:
    browser.open(page, 1280, 900)
    assert browser.complaints == []
    outside = [url for url in browser.requests if not url.startswith("data:")]
    assert outside == [page.absolute().as_uri()]
    assert browser.evaluate("window.hacked") is None
    assert "[object" not in browser.evaluate("document.body.innerText")


def test_a_curve_can_be_hovered(browser: Browser, page: Path) -> None:
    browser.open(page, 1280, 900)
    choose(browser, "minatar-breakout")
    assert tooltip(browser) == ""
    browser.hover("#curves .chart")
    shown = tooltip(browser)
    assert "frames" in shown
    for name in ("NCAPO", "PPO", "A2C", "Rainbow", "Off-PAC", "NCAPO, paper"):
        assert name in shown
    rows = browser.evaluate("[...document.querySelectorAll('#curves .tooltip tr')].map(r => r.cells[1].innerText)")
    values = [float(row) for row in rows]
    assert values == sorted(values, reverse=True)
    assert 30 < values[0] < 60
    assert browser.complaints == []


def test_a_game_can_be_chosen(browser: Browser, page: Path) -> None:
    browser.open(page, 1280, 900)
    choose(browser, "minatar-seaquest")
    text = browser.evaluate("document.querySelector('#final').innerText")
    assert "32.6" in text, "the paper's number of this game"
    assert "not run on this environment" in text
    assert browser.evaluate("location.hash") == "#minatar-seaquest"
    choose(browser, "CartPole-v1")
    assert browser.evaluate("document.querySelectorAll('#curves path.curve').length") == 1
    assert browser.evaluate("!document.querySelector('#paper')")
    assert browser.complaints == []


def test_views_and_curves_can_be_switched(browser: Browser, page: Path) -> None:
    browser.open(page, 1280, 900)
    choose(browser, "minatar-breakout")
    paths = "document.querySelectorAll('#curves svg path').length"
    before = browser.evaluate(paths)
    browser.click("#seeds")
    browser.wait(f"{paths} === {before + 25}")
    browser.click("#seeds")
    browser.wait(f"{paths} === {before}")
    line = "document.querySelector('#curves path.curve')?.getAttribute('d')"
    iqm = browser.evaluate(line)
    browser.click("input[name=centre][value=mean]")
    browser.wait("document.querySelector('#curves').innerText.includes('half a standard deviation')")
    browser.wait(f"{line} && {line} !== {json.dumps(iqm)}")
    assert browser.evaluate("document.querySelectorAll('#curves path.gap').length") == 1, "A2C lost a seed"
    browser.click("#curves .legend button")
    browser.wait("document.querySelectorAll('#curves path.curve').length === 4")
    browser.click("#paper")
    browser.wait("!document.querySelector('#curves').innerText.includes('Dashed')")
    assert browser.complaints == []


def test_the_keyboard_is_enough(browser: Browser, page: Path) -> None:
    browser.open(page, 1280, 900)
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.name") == "env"
    browser.press("ArrowRight")
    browser.wait("document.querySelector('#h-curves').textContent.includes('minatar-breakout')")
    assert browser.evaluate("document.activeElement.name") == "env", "the focus stays where it was"
    browser.wait("document.querySelector('#curves .chart path.curve')")
    browser.evaluate("document.querySelector('#curves .chart').focus()")
    browser.press("End")
    assert tooltip(browser).startswith("1M frames")
    browser.press("ArrowLeft")
    assert tooltip(browser).startswith("990k frames")
    assert "NCAPO" in browser.evaluate("document.querySelector('#curves [aria-live]').textContent")
    browser.press("Escape")
    assert tooltip(browser) == ""


def test_a_key_or_the_mouse_before_the_first_frame(browser: Browser, page: Path) -> None:
    browser.open(page, 1280, 900)
    chart = "(() => { document.querySelector('input[name=env][value=\"%d\"]').click();"
    chart += "const chart = document.querySelector('#curves .chart'); chart.focus(); %s;"
    chart += "return [!!chart.querySelector('svg'), chart.querySelector('.tooltip').innerText]; })()"
    key = "chart.dispatchEvent(new KeyboardEvent('keydown', {key: 'End'}))"
    drawn, shown = browser.evaluate(chart % (1, key))
    assert drawn
    assert "frames" in shown
    mouse = "chart.dispatchEvent(new PointerEvent('pointermove', {clientX: 400, clientY: 400}))"
    drawn, shown = browser.evaluate(chart % (0, mouse))
    assert drawn
    assert "frames" in shown
    assert browser.complaints == []


def test_the_picture_plays(browser: Browser, page: Path) -> None:
    browser.open(page, 1280, 900)
    choose(browser, "minatar-breakout")
    browser.wait("document.querySelector('.gifs img').complete")
    assert browser.evaluate("document.querySelector('.gifs img').naturalWidth") == 100


def test_results_have_evaluations_beside_the_training(browser: Browser, tmp_path: Path) -> None:
    make_result(tmp_path, "freeway", "ncapo", 50.0)
    make_result(tmp_path, "freeway", "ppo", 40.0)
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 0
    browser.open(tmp_path / "page.html", 1280, 900)
    label = "document.querySelector('#curves svg').textContent"
    assert "evaluation return" in browser.evaluate(label)
    browser.click("input[name=kind][value=training]")
    browser.wait(f"document.querySelector('#curves svg') && {label}.includes('training return')")
    assert browser.evaluate("document.querySelectorAll('#curves path.curve').length") == 2
    browser.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert "gamma" in browser.evaluate("document.querySelector('.settings').innerText")
    assert browser.complaints == []


def test_screenshots(browser: Browser, page: Path) -> None:
    """For looking at: desktop and phone; nothing may stick out of a phone's screen."""
    browser.open(page, 1280, 900)
    choose(browser, "minatar-breakout")
    browser.hover("#curves .chart")
    browser.screenshot(SCREENSHOTS / "desktop.png")
    browser.click("#seeds")
    browser.hover("#curves .chart")
    browser.screenshot(SCREENSHOTS / "desktop-seeds.png", whole=False)
    browser.open(page, 390, 844, phone=True)
    choose(browser, "minatar-breakout")
    browser.tap("#curves .chart")
    assert "NCAPO" in tooltip(browser)
    assert browser.evaluate("document.documentElement.scrollWidth") == 390
    browser.screenshot(SCREENSHOTS / "phone.png")
    browser.screenshot(SCREENSHOTS / "phone-top.png", whole=False)
    for name in ("desktop", "phone"):
        assert (SCREENSHOTS / f"{name}.png").stat().st_size > 20_000
    assert browser.complaints == []


def test_a_sweep_is_filtered_and_coloured_by_setting(browser: Browser, tmp_path: Path) -> None:
    for rate in (1e-3, 3e-4):
        for clip in (1.0, 5.0):
            settings = {"gamma": 0.99, "learning_rate": rate, "clip": clip}
            make_run(tmp_path / "jobs" / f"{rate}-{clip}", config=settings, top=2e4 * rate + clip)
    (tmp_path / "sweep.toml").write_text("")
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 0
    browser.open(tmp_path / "page.html", 1280, 900)
    curves = "document.querySelectorAll('#curves path.curve').length"
    browser.wait(f"{curves} === 4")
    first = browser.evaluate("document.querySelector('#final tbody th').innerText")
    assert first == "NCAPO, learning_rate=0.001, clip=5.0", "the best one"
    colours = (
        "new Set([...document.querySelectorAll('#curves path.curve')].map(e => e.getAttribute('stroke'))).size"
    )
    assert browser.evaluate(colours) == 4
    browser.click("input[name=by][value=clip]")
    browser.wait(f"{curves} === 4 && {colours} === 2")
    browser.screenshot(SCREENSHOTS / "sweep.png")
    browser.evaluate("document.getElementById('show-learning_rate-0.001').click()")
    browser.wait(f"{curves} === 2")
    assert browser.evaluate("document.querySelectorAll('#final tbody tr').length") == 2
    assert browser.evaluate("document.activeElement.id") in ("", "show-learning_rate-0.001")
    cells = browser.evaluate(
        "[...document.querySelectorAll('#marginals tbody tr')].map(r => r.cells[2].innerText)"
    )
    assert cells == ["2", "0", "1", "1"], "combinations shown, by value"
    browser.evaluate("document.getElementById('show-learning_rate-0.0003').click()")
    browser.wait("document.querySelector('#curves').innerText.includes('No curve is chosen')")
    assert browser.complaints == []

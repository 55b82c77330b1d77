//! The page of `muster ui` and `muster up`, in a real browser with a real fleet.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

mod actions;
mod guard;
mod journeys;
mod modules;

use muster_tests::muster_process::MusterProcess;
use muster_tests::webdriver::{Browser, Window};

/// Nine simulated nodes in three zones, with a grace period of eight seconds.
fn nine_nodes() -> MusterProcess {
    MusterProcess::up(&["--nodes", "9", "--zones", "3", "--speed", "5"])
}

/// A browser that shows the page of a fleet, and has drawn all nodes.
fn browser_at(url: &str, nodes: usize) -> Browser {
    let browser = Browser::start(Window::WIDE);
    browser.open(url);
    browser.wait_until(&format!("{COUNT_ALL} === {nodes}"));
    browser
}

/// The sum of the counts of all states.
const COUNT_ALL: &str =
    "[...document.querySelectorAll('#counts .chip b')].reduce((sum, it) => sum + +it.textContent, 0)";

/// Opens the table and waits until a node has one of these states in it.
fn wait_for_state(browser: &Browser, node: &str, states: &str) {
    browser.run("document.getElementById('view-list').click(); return 1;");
    browser.wait_until(&format!(
        "[...document.querySelectorAll('#list .tr')].some((row) => row.querySelector('[data-node=\"{node}\"]') \
         && /^({states})$/.test(row.querySelector('.state').textContent))"
    ));
    browser.run("document.getElementById('view-map').click(); return 1;");
}

/// How many pixels of the map have the colour of a state.
fn pixels_of(state: &str) -> String {
    format!(
        "(() => {{ {PICTURE} const wanted = rgb('{state}'); let count = 0; \
         for (let k = 0; k < data.length; k += 4) if (isOf(k, wanted)) count++; return count; }})()"
    )
}

/// The pixels of the map, `data`, and whether the one at a place in it has a colour, `isOf`. They are read from
/// a copy: the browser would draw the map in another way, and warn, when it was read often.
const PICTURE: &str = "const canvas = document.getElementById('map-canvas'), { width, height } = canvas; \
    const copy = new OffscreenCanvas(width, height).getContext('2d', { willReadFrequently: true }); \
    copy.drawImage(canvas, 0, 0); \
    const { data } = copy.getImageData(0, 0, width, height), style = getComputedStyle(document.documentElement); \
    const rgb = (state) => [1, 3, 5].map((at) => \
        parseInt(style.getPropertyValue(`--${state}`).trim().slice(at, at + 2), 16)); \
    const isOf = (k, [r, g, b]) => data[k] === r && data[k + 1] === g && data[k + 2] === b;";

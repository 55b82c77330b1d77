//! What a person sees and does: the fleet, a node that fails, its explanation, the keyboard, a small screen.

use muster_tests::muster_process::MusterProcess;
use muster_tests::webdriver::{Browser, Window};

use super::{PICTURE, browser_at, nine_nodes, pixels_of, wait_for_state};

/// The code points of WebDriver for keys without a character.
const ENTER: &str = "\u{e007}";
const ESCAPE: &str = "\u{e00c}";
const RIGHT: &str = "\u{e014}";
const TAB: &str = "\u{e004}";

#[test]
fn s280_the_page_shows_every_node_and_zone_and_its_policy_blocks_nothing_of_it() {
    let fleet = nine_nodes();
    let browser = browser_at(&fleet.page(), 9);
    browser.wait_until("document.querySelectorAll('#zones .zone').length === 3");
    assert_eq!(browser.text("document.querySelector('#zones .zone b').textContent"), "simulated/zone-1");
    browser.wait_until(&format!("{} > 500", pixels_of("ready")));
    browser.wait_until("document.getElementById('side').textContent.includes('What happens next')");
    browser.wait_until("document.getElementById('clock').textContent.endsWith('UTC')");
    browser.wait_until(
        "document.getElementById('map-canvas').getAttribute('aria-label').includes('9 nodes in 3 zones')",
    );

    // Both themes, both views and a node's panel, so that all modules have run.
    browser.press("d");
    browser.wait_until("document.documentElement.dataset.theme === 'dark'");
    browser.press("n?");
    browser.wait_until("document.getElementById('help').open");
    browser.press(ESCAPE);
    wait_for_state(&browser, "sim-1", "Ready|Late");
    browser.press("/sim-1");
    browser.wait_until("document.getElementById('map-fact').textContent === '1 node found'");
    assert_eq!(browser.console(), [""; 0], "no error, and nothing that a policy has refused");
}

#[test]
fn s281_a_node_that_is_killed_turns_its_tile_and_comes_back() {
    let fleet = nine_nodes();
    let browser = browser_at(&fleet.page(), 9);
    browser.wait_until(&format!("{} === 0", pixels_of("unknown")));
    fleet.simulate("kill?node=sim-5");
    browser.wait_until(&format!("{} > 50 || {} > 50", pixels_of("unknown"), pixels_of("evicting")));
    wait_for_state(&browser, "sim-5", "Unknown|Evicting");
    browser.wait_until("/not Ready/.test(document.getElementById('verdict').textContent)");
    // A zone of three needs more than one failure to be disrupted; its card says how many are left.
    browser.wait_until(
        "document.querySelector('[data-zone=\"simulated/zone-2\"]').textContent.includes('2 / 3')",
    );
    assert_eq!(browser.console(), [""; 0]);

    fleet.simulate("revive?node=sim-5");
    wait_for_state(&browser, "sim-5", "Ready");
    browser.wait_until(&format!("{} === 0", pixels_of("unknown")));
}

#[test]
fn s282_a_zone_that_is_lost_is_the_verdict() {
    let fleet = nine_nodes();
    let browser = browser_at(&fleet.page(), 9);
    fleet.simulate("kill?zone=zone-3");
    browser.wait_until(
        "document.getElementById('verdict').textContent.startsWith('Zone simulated/zone-3 is lost')",
    );
    browser.wait_until("document.querySelector('#zones .zone').classList.contains('full')");
    assert_eq!(
        browser.text("document.querySelector('#zones .zone').dataset.zone"),
        "simulated/zone-3",
        "the worst zone comes first"
    );
    browser.wait_until("document.querySelector('#zones .zone').textContent.includes('Rate')");
}

#[test]
fn s283_a_click_on_a_tile_explains_the_node() {
    let fleet = nine_nodes();
    let browser = browser_at(&fleet.page(), 9);
    browser.wait_until(&format!("{} > 500", pixels_of("ready")));
    // The first pixel in the colour of Ready is the mark of the first node.
    let point = browser.run(&format!(
        "{PICTURE} const box = canvas.getBoundingClientRect(), wanted = rgb('ready'); \
         for (let k = 0; k < data.length; k += 4) \
           if (isOf(k, wanted)) \
             return [box.x + ((k / 4) % width) + 4, box.y + Math.floor(k / 4 / width) + 4].map(Math.round); \
         throw new Error('no node is drawn');"
    ));
    browser.click_at(point[0].as_i64().unwrap(), point[1].as_i64().unwrap());
    browser.wait_until("document.getElementById('node-title')?.textContent === 'sim-1'");
    for expected in [
        "What happened, and what comes",
        "Last heard",
        "Conditions",
        "KubeletReady",
        "Address block",
        "Labels",
    ] {
        browser.wait_until(&format!("document.getElementById('side').textContent.includes('{expected}')"));
    }
    assert!(browser.text("location.hash").contains("node=sim-1"), "the address can be sent to somebody");
    assert_eq!(browser.console(), [""; 0]);

    // The address opens the same node, and a node that fails is explained anew.
    browser.open(&format!("{}#node=sim-7", fleet.page()));
    browser.wait_until("document.getElementById('node-title')?.textContent === 'sim-7'");
    fleet.simulate("kill?node=sim-7");
    browser.wait_until("/Unknown|Evicting/.test(document.querySelector('#side .title .pill').textContent)");
    browser.wait_until("[...document.querySelectorAll('#side .pill.wrong')].length > 0");
}

#[test]
fn s284_everything_can_be_done_with_the_keyboard() {
    let fleet = nine_nodes();
    let browser = browser_at(&fleet.page(), 9);
    browser.run("document.getElementById('map-canvas').focus(); return 1;");
    browser.press(RIGHT);
    browser.wait_until("document.getElementById('node-title')?.textContent === 'sim-1'");
    browser.wait_until("document.getElementById('say').textContent.startsWith('sim-1, ')");
    browser.press(RIGHT);
    browser.wait_until("document.getElementById('node-title')?.textContent === 'sim-4'");
    browser.press(ENTER);
    browser.wait_until("document.activeElement.id === 'node-title'");
    browser.press(TAB);
    browser.wait_until("document.activeElement.dataset.act === 'close'");
    // The focus survives the refreshes, of which there are four a second.
    browser.run("await new Promise((done) => setTimeout(done, 700)); return 1;");
    assert_eq!(browser.text("document.activeElement.dataset.act"), "close");
    browser.press(ENTER);
    browser.wait_until("document.getElementById('node-title') === null");
    browser.press("/");
    browser.wait_until("document.activeElement.id === 'query'");
    browser.press("sim-9");
    browser.wait_until("document.getElementById('map-fact').textContent === '1 node found'");
    browser.press(ENTER);
    browser.wait_until("document.getElementById('node-title')?.textContent === 'sim-9'");
    browser.press(ESCAPE);
    browser.wait_until("document.getElementById('query').value === ''");
    browser.press("t");
    browser.wait_until(
        "!document.getElementById('list').hidden && document.querySelectorAll('#list .tr').length === 9",
    );
    browser.press("tz");
    browser.wait_until("document.querySelector('#zones .zone').getAttribute('aria-pressed') === 'true'");
}

#[test]
fn s285_labels_are_searched_in_the_store() {
    let fleet = nine_nodes();
    let browser = browser_at(&fleet.page(), 9);
    browser.press("/kubernetes.io/hostname=sim-3");
    browser.wait_until("document.getElementById('map-fact').textContent === '1 node found'");
    browser.press(ESCAPE);
    browser.press("/zone=zone-2");
    browser.wait_until("document.getElementById('map-fact').textContent === '3 nodes found'");
    browser.press(ESCAPE);
    browser.press("/state=unknown");
    browser.wait_until("document.getElementById('map-fact').textContent === '0 nodes found'");
}

#[test]
fn s286_a_page_that_lost_its_server_says_so_and_goes_on_when_it_is_back() {
    let fleet = nine_nodes();
    let (store, controller) = (fleet.store(), fleet.controller());
    let ui = MusterProcess::ui(&["--store", &store, "--controller", &controller]);
    let url = ui.address();
    let browser = browser_at(&url, 9);
    drop(ui);
    browser.wait_until(
        "document.getElementById('verdict').textContent.startsWith('This page has lost its server')",
    );
    browser.wait_until("document.getElementById('app').classList.contains('stale')");
    let address = url.trim_start_matches("http://").trim_end_matches('/');
    let _ui = MusterProcess::ui(&["--store", &store, "--controller", &controller, "--listen", address]);
    browser.wait_until("/Ready/.test(document.getElementById('verdict').textContent)");
    browser.wait_until("!document.getElementById('app').classList.contains('stale')");
}

#[test]
fn s287_a_store_that_is_away_is_named_and_nothing_is_shown_as_live() {
    let ui = MusterProcess::ui(&["--store", "http://127.0.0.1:9", "--controller", "http://127.0.0.1:9"]);
    let browser = Browser::start(Window::WIDE);
    browser.open(&ui.address());
    browser.wait_until("document.getElementById('verdict').textContent.startsWith('The store is not heard')");
    browser.wait_until("document.getElementById('live').classList.contains('off')");
}

#[test]
fn s288_a_small_screen_shows_all_of_it_without_scrolling_sideways() {
    let fleet = nine_nodes();
    let browser = browser_at(&fleet.page(), 9);
    for width in [1440, 1000, 390, 320] {
        browser.resize(Window { width, height: 844, scale: 1, is_dark: true });
        browser.wait_until(&format!("innerWidth === {width}"));
        browser.wait_until("document.documentElement.scrollWidth <= innerWidth");
        for part in ["verdict", "counts", "zones", "map-canvas", "side"] {
            let size =
                browser.value(&format!("document.getElementById('{part}').getBoundingClientRect().width"));
            assert!(size.as_f64().unwrap() > 100.0, "{part} has {size} of {width} pixels");
        }
    }
    browser.wait_until("document.documentElement.dataset.theme === 'dark'");
}

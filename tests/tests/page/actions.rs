//! What the page does when it is allowed to: only with the token of its process, and only with a reason.

use muster_tests::muster_process::MusterProcess;
use muster_tests::webdriver::{Browser, Window};

use super::{browser_at, nine_nodes, wait_for_state};

/// Presses a button of the node's panel, writes a reason and sends the form.
fn act(browser: &Browser, button: &str) {
    browser.wait_until(&format!("document.querySelector('#side [data-act={button}]') !== null"));
    browser.click(&format!("#side [data-act={button}]"));
    browser.wait_until("document.getElementById('act').open && document.activeElement.name === 'reason'");
    browser.press("new disk\u{e007}");
}

#[test]
fn s289_a_page_that_may_act_cordons_drains_and_uncordons_with_a_reason() {
    let fleet = nine_nodes();
    let (store, controller) = (fleet.store(), fleet.controller());
    let ui = MusterProcess::ui(&["--store", &store, "--controller", &controller, "--allow-actions"]);
    let browser = browser_at(&ui.address(), 9);
    browser.wait_until("!location.hash.includes('token')");
    browser.run("document.getElementById('map-canvas').focus(); return 1;");
    browser.press("\u{e014}");
    act(&browser, "cordon");
    browser.wait_until("!document.getElementById('act').open");
    wait_for_state(&browser, "sim-1", "Cordoned");
    browser.wait_until("document.getElementById('side').textContent.includes('new disk')");

    act(&browser, "uncordon");
    browser.wait_until("!document.getElementById('act').open");
    wait_for_state(&browser, "sim-1", "Ready|Late");

    // The first press shows the plan, the second one drains.
    act(&browser, "drain");
    browser.wait_until("document.querySelector('#act .plan') !== null");
    assert_eq!(browser.text("document.querySelector('#act button[type=submit]').textContent"), "Drain");
    browser.click("#act button[type=submit]");
    browser.wait_until("!document.getElementById('act').open");
    wait_for_state(&browser, "sim-1", "Draining|Cordoned");
    assert_eq!(browser.console(), [""; 0]);

    // The token belongs to the window that the printed address was opened in.
    let stranger = Browser::start(Window::WIDE);
    stranger.open(&format!("{}#node=sim-2", ui.address().split('#').next().unwrap()));
    stranger.wait_until("document.getElementById('side').textContent.includes('Conditions')");
    assert_eq!(stranger.value("document.querySelectorAll('#side [data-act=cordon]').length"), 0);
}

#[test]
fn s289_a_page_is_read_only_unless_it_is_allowed_to_act() {
    let fleet = nine_nodes();
    let browser = browser_at(&format!("{}#node=sim-2", fleet.page()), 9);
    browser.wait_until("document.getElementById('side').textContent.includes('Conditions')");
    assert_eq!(browser.value("document.querySelectorAll('#side [data-act=cordon]').length"), 0);
    let refused = browser.run(
        "const content = JSON.stringify({ action: 'cordon', reason: 'x' }), headers = { 'content-type': 'application/json' }; \
         const answer = await fetch('/api/nodes/sim-2', { method: 'POST', headers, body: content }); \
         return [answer.status, (await answer.json()).failure];",
    );
    assert_eq!(refused[0], 403, "{refused}");
    assert!(refused[1].as_str().unwrap().contains("--allow-actions"), "{refused}");
    wait_for_state(&browser, "sim-2", "Ready|Late");
}

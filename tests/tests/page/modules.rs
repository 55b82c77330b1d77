//! The page's pure modules, as tables (`modules.js`), in the engine that runs them.

use muster_tests::muster_process::MusterProcess;
use muster_tests::webdriver::{Browser, Window};

#[test]
fn s280_the_modules_of_the_page_sort_lay_out_and_count_as_they_should() {
    let ui = MusterProcess::ui(&["--store", "http://127.0.0.1:9", "--controller", "http://127.0.0.1:9"]);
    let browser = Browser::start(Window::WIDE);
    browser.open(&ui.address());
    assert_eq!(browser.run(include_str!("modules.js")), serde_json::json!([]));
}

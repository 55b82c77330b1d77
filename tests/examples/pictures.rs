//! Makes the pictures of the documents from real fleets in a real browser. `deploy/pictures/make` runs it.

use std::path::{Path, PathBuf};
use std::process::Command;

use muster_tests::muster_process::MusterProcess;
use muster_tests::webdriver::{Browser, Window};

fn main() {
    let directory = std::env::args_os().nth(1).map(PathBuf::from);
    let directory = directory.expect("the argument is the directory of the pictures");
    nine_nodes(&directory.join("nine-light.png"));
    lost_zone(&directory.join("outage-2000-dark.png"));
}

/// Runs a command of `muster` against a fleet.
fn muster(fleet: &MusterProcess, arguments: &[&str]) {
    let mut command = Command::new(muster_tests::muster_process::binary());
    command.args(arguments).args(["--store", &fleet.store(), "--controller", &fleet.controller()]);
    assert!(command.status().expect("muster can be run").success(), "{arguments:?}");
}

/// A small fleet in which one node has failed and is explained.
fn nine_nodes(file: &Path) {
    let fleet = MusterProcess::up(&["--nodes", "9", "--zones", "3", "--speed", "2"]);
    let directory = tempfile::tempdir().expect("a directory");
    let manifest = directory.path().join("pods.yaml");
    let pod = |name: &str, node: &str| {
        format!(
            "kind: Pod\napiVersion: v1\nmetadata: {{name: {name}}}\nspec:\n  nodeName: {node}\n  \
             containers: [{{name: main, image: none}}]\n---\n"
        )
    };
    let pods = [pod("web-1", "sim-5"), pod("web-2", "sim-5"), pod("web-3", "sim-6")].concat();
    std::fs::write(&manifest, pods).expect("the manifest can be written");
    muster(&fleet, &["apply", "-f", &manifest.display().to_string()]);
    muster(&fleet, &["cordon", "sim-9", "--reason", "new disks"]);
    let browser = Browser::start(Window::WIDE);
    browser.open(&format!("{}#node=sim-5", fleet.page()));
    browser.wait_until("document.querySelectorAll('#zones .zone').length === 3");
    fleet.simulate("kill?node=sim-5");
    browser.wait_until("document.querySelector('#side .title .pill')?.textContent === 'Evicting'");
    browser.wait_until("document.getElementById('side').textContent.includes('leaves in')");
    browser.save(file);
}

/// A fleet of 2,000 nodes of which a zone is without power.
fn lost_zone(file: &Path) {
    let fleet = MusterProcess::up(&["--nodes", "2000", "--zones", "6"]);
    let browser = Browser::start(Window { is_dark: true, ..Window::WIDE });
    for node in ["sim-100", "sim-421", "sim-902", "sim-1505"] {
        muster(&fleet, &["cordon", node, "--reason", "new disks"]);
    }
    browser.open(&fleet.page());
    browser.wait_until("document.querySelectorAll('#zones .zone').length === 6");
    fleet.simulate("kill?zone=zone-2");
    fleet.simulate("kill?node=sim-33");
    browser.wait_until("document.getElementById('verdict').textContent.includes('is lost')");
    // Until a few of its nodes have been tainted.
    browser.wait_until("+document.querySelector('[data-only=\"7\"] b').textContent >= 3");
    browser.save(file);
}

//! `muster` on a pseudoterminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::fake_controller::{FakeController, Responses};
use crate::harness::{Harness, TIMEOUT, sample};

/// A `muster` on a pseudoterminal, and its output so far.
struct Pty {
    child: Child,
    keys: File,
    drawn: Receiver<Vec<u8>>,
    seen: String,
}

impl Pty {
    fn spawn(harness: &Harness, arguments: &str) -> Pty {
        let master: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        tcsetwinsize(&master, Winsize { ws_row: 30, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = rustix::fs::open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let end = || Stdio::from(slave.try_clone().unwrap());
        let mut command = harness.command(arguments);
        let child = command.stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm").spawn().unwrap();
        let mut screen = File::from(master.try_clone().unwrap());
        let (sender, drawn) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Pty { child, keys: File::from(master), drawn, seen: String::new() }
    }

    /// Reads until the output has this text.
    fn wait_for(&mut self, text: &str) {
        tokio::task::block_in_place(|| {
            while !self.seen.contains(text) {
                let bytes = self.drawn.recv_timeout(TIMEOUT);
                let bytes = bytes.unwrap_or_else(|error| panic!("no {text}: {error}; seen {:?}", self.seen));
                self.seen.push_str(&String::from_utf8_lossy(&bytes));
            }
        });
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    fn exit_code(&mut self) -> Option<i32> {
        tokio::task::block_in_place(|| self.child.wait().unwrap()).code()
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn colours_are_for_terminals_without_no_color() {
    let mut harness = Harness::with_store().await;
    harness.muster_with_stdin("apply -f -", &sample("node.yaml")).await.ok();
    let coloured = "\u{1b}[33mReady,SchedulingDisabled,Draining\u{1b}[0m";
    Pty::spawn(&harness, "get nodes").wait_for(coloured);
    harness.set_env("NO_COLOR", "1");
    let mut plain = Pty::spawn(&harness, "get nodes");
    plain.wait_for("eu/eu-1");
    assert!(!plain.seen.contains('\u{1b}'), "{:?}", plain.seen);
}

#[tokio::test(flavor = "multi_thread")]
async fn top_follows_the_fleet_until_q_is_pressed() {
    let mut harness = Harness::with_store().await;
    let controller = FakeController::start(Responses::default()).await;
    harness.set_env("MUSTER_CONTROLLER", controller.url.clone());
    harness.muster_with_stdin("apply -f -", &sample("node.yaml")).await.ok();
    let mut top = Pty::spawn(&harness, "top");
    top.wait_for("worker-1");
    harness
        .muster_with_stdin("apply -f -", "{kind: Node, apiVersion: v1, metadata: {name: worker-2}}")
        .await
        .ok();
    top.wait_for("worker-2");
    top.press("q");
    assert_eq!(top.exit_code(), Some(0));
    // The alternate screen is left.
    top.wait_for("\u{1b}[?1049l");
}

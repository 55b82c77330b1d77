//! In front of a person: the other end of a terminal is ours.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::fake_controller::{Controller, Script};
use crate::harness::{PATIENCE, Stage, sample};

/// A `muster` on a terminal, and what it has drawn.
struct Screen {
    child: Child,
    keys: File,
    drawn: Receiver<Vec<u8>>,
    seen: String,
}

impl Screen {
    fn of(stage: &Stage, arguments: &str) -> Screen {
        let ours: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        tcsetwinsize(&ours, Winsize { ws_row: 30, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap();
        let theirs = rustix::fs::open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let end = || Stdio::from(theirs.try_clone().unwrap());
        let mut command = stage.command(arguments);
        let child = command.stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm").spawn().unwrap();
        let mut screen = File::from(ours.try_clone().unwrap());
        let (sender, drawn) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Screen { child, keys: File::from(ours), drawn, seen: String::new() }
    }

    /// Looks until these words have been drawn.
    fn until(&mut self, words: &str) {
        tokio::task::block_in_place(|| {
            while !self.seen.contains(words) {
                let bytes = self.drawn.recv_timeout(PATIENCE);
                let bytes = bytes.unwrap_or_else(|error| panic!("no {words}: {error}; seen {:?}", self.seen));
                self.seen.push_str(&String::from_utf8_lossy(&bytes));
            }
        });
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    fn ended(&mut self) -> Option<i32> {
        tokio::task::block_in_place(|| self.child.wait().unwrap()).code()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn colours_are_for_terminals_unless_nobody_wants_them() {
    let mut stage = Stage::with_store().await;
    stage.piped("apply -f -", &sample("node.yaml")).await.ok();
    let coloured = "\u{1b}[33mReady,SchedulingDisabled,Draining\u{1b}[0m";
    Screen::of(&stage, "get nodes").until(coloured);
    stage.say("NO_COLOR", "1");
    let mut plain = Screen::of(&stage, "get nodes");
    plain.until("eu/eu-1");
    assert!(!plain.seen.contains('\u{1b}'), "{:?}", plain.seen);
}

#[tokio::test(flavor = "multi_thread")]
async fn top_follows_the_fleet_until_q_is_pressed() {
    let mut stage = Stage::with_store().await;
    let controller = Controller::start(Script::default()).await;
    stage.say("MUSTER_CONTROLLER", controller.url.clone());
    stage.piped("apply -f -", &sample("node.yaml")).await.ok();
    let mut top = Screen::of(&stage, "top");
    top.until("worker-1");
    stage.piped("apply -f -", "{kind: Node, apiVersion: v1, metadata: {name: worker-2}}").await.ok();
    top.until("worker-2");
    top.press("q");
    assert_eq!(top.ended(), Some(0));
    // The screen is given back: the other page is left.
    top.until("\u{1b}[?1049l");
}

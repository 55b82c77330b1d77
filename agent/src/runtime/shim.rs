//! The shim: one small process for each container, which starts it, waits for it and records its exit.
//!
//! The agent's program runs as `muster-agent shim <order>`. The shim leads its own session, so that signals to the
//! agent or its group do not reach it. It adopts the container's orphans and kills them before it records the exit.
//! `muster-agent shim <order> <command>...` runs a hook in the container's environment instead.
//!
//! Plain blocking code: a shim waits in one system call for as long as its container runs, and must use next to no
//! memory.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::fchown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use muster_rpc::clock::{Clock, SystemClock};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, getpid, kill_process, set_child_subreaper,
    set_parent_process_death_signal, setsid, umask, wait, waitid, waitpid,
};
use rustix::thread::CpuSet;
use tokio::signal::unix::{SignalKind, signal};

use super::processes::{self, ProcessKey};
use super::record::{self, Files, Order, Run};
use super::{ContainerSpec, Exit, ExitReason, affinity, cgroup, logs, sandbox, volumes};

/// The agent's first argument when it runs as a shim.
pub const SUBCOMMAND: &str = "shim";
/// What the shim prints on its standard output once the container runs.
const STARTED: &str = "started";
/// What it prints instead, followed by the reason.
pub(super) const FAILED: &str = "failed: ";

/// The PATH of a container that sets none.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The exit code of a container that could not be started, as container runtimes have it.
const NOT_STARTED: i32 = 128;
/// The exit code of a hook that could not be started, as shells have it.
const HOOK_NOT_STARTED: u8 = 127;
/// The umask of programs, as they expect it. The agent's own is stricter: it keeps its files to itself.
const PROGRAM_UMASK: Mode = Mode::from_raw_mode(0o022);
/// The stack of the thread that starts the program.
const STARTER_STACK: usize = 128 << 10;
/// The kernel's control file for the order of out-of-memory kills.
const OOM_SCORE_ADJ: &str = "/proc/self/oom_score_adj";
/// What a container's last words are at most.
const LAST_BYTES: u64 = 1024;
const LAST_LINES: usize = 10;
/// The pause before another attempt to write the exit.
const DISK_RETRY: Duration = Duration::from_secs(1);

/// Runs the shim; `args` are what follows the subcommand.
pub fn shim_main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut args = args.into_iter();
    let Some(order) = args.next().map(PathBuf::from) else {
        eprintln!("usage: {SUBCOMMAND} <order> [<hook command>...]");
        return ExitCode::FAILURE;
    };
    let hook: Vec<OsString> = args.collect();
    let (outcome, failure) = if hook.is_empty() {
        (supervise(&order), ExitCode::FAILURE)
    } else {
        (become_hook(&order, &hook), ExitCode::from(HOOK_NOT_STARTED))
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shim for {}: {error}", order.display());
            failure
        }
    }
}

fn supervise(path: &Path) -> io::Result<()> {
    // Fails only for a session leader, which is what the shim has to be.
    let _ = setsid();
    set_child_subreaper(Some(getpid()))?;
    outlive_signals()?;

    let files = Files::beside(path);
    let held = File::open(path)?;
    held.lock()?;
    if files.exit().try_exists()? || files.run().try_exists()? {
        // An agent started meanwhile, found no shim at work, and closed the order.
        return say(&format!("{FAILED}another process has closed this order"));
    }
    let order: Order = record::read(path)?.ok_or(io::ErrorKind::NotFound)?;
    match begin(&order, &files) {
        Ok(run) => {
            // An agent that died meanwhile reads the record instead.
            let _ = say(STARTED);
            let exit = finish(&order, &files, &run)?;
            write_down(&files, &exit)
        }
        Err(reason) => {
            let now = SystemClock::new().wall();
            let exit = Exit {
                code: NOT_STARTED,
                signal: None,
                reason: ExitReason::NotStarted,
                message: reason.clone(),
                started_at: now,
                finished_at: now,
            };
            end_orphans(&order)?;
            write_down(&files, &exit)?;
            say(&format!("{FAILED}{reason}"))
        }
    }
}

/// Keeps the signals that terminate a process by default from terminating this one.
///
/// They are caught rather than ignored: an ignored signal stays ignored in the container's program, a caught one does
/// not. The handlers stay after the short-lived tokio runtime that installs them.
pub(super) fn outlive_signals() -> io::Result<()> {
    let brief = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _inside = brief.enter();
    for kind in [
        SignalKind::hangup(),
        SignalKind::interrupt(),
        SignalKind::quit(),
        SignalKind::terminate(),
        SignalKind::user_defined1(),
        SignalKind::user_defined2(),
    ] {
        drop(signal(kind)?);
    }
    Ok(())
}

/// Prints one line for the agent that started the shim.
fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "{}", line.replace('\n', " "))?;
    out.flush()
}

/// Starts the program and records the run.
fn begin(order: &Order, files: &Files) -> Result<Run, String> {
    let because = |doing: &str| {
        let doing = doing.to_owned();
        move |error: io::Error| format!("{doing}: {error}")
    };
    let log = logs::open(&files.log()).map_err(because("the log cannot be opened"))?;
    if let Some(user) = order.user {
        // So that the program can open /dev/stdout, which is this file.
        fchown(&log, Some(user.uid), Some(user.gid))
            .map_err(because("the log cannot be given to its user"))?;
    }
    let errors = log.try_clone().map_err(because("the log cannot be opened"))?;
    let boot_id = processes::boot_id().map_err(because("the boot has no name"))?;
    let pid = getpid().as_raw_nonzero().get();
    let shim = ProcessKey::of(pid).map_err(because("the shim does not find itself"))?;
    let mut command = program_of(&order.spec).ok_or("it has no command")?;
    command.stdin(Stdio::null()).stdout(log).stderr(errors).process_group(0);

    let child = {
        let _confined = Confined::enter(order).map_err(because("its limits cannot be set"))?;
        start_sandboxed(&mut command, order)?
    };
    // The pid belongs to the program until it is reaped, so /proc shows the program even if it has exited.
    let main =
        ProcessKey::of(child.id().cast_signed()).map_err(because("the program is not found in /proc"))?;
    let run = Run { boot_id, shim, main, started_at: SystemClock::new().wall() };
    record::write(&files.run(), &run).map_err(because("the start cannot be written down"))?;
    Ok(run)
}

/// Starts the program from a thread that has entered the container's sandbox, which the program inherits.
fn start_sandboxed(command: &mut Command, order: &Order) -> Result<Child, String> {
    let start = || {
        volumes::enter(order)?;
        sandbox::enter(order.user, order.spec.security.privilege)
            .map_err(|error| format!("its privileges cannot be dropped: {error}"))?;
        command.spawn().map_err(|error| unstartable(order, &error))
    };
    thread::scope(|scope| {
        let starter = thread::Builder::new().stack_size(STARTER_STACK).spawn_scoped(scope, start);
        let starter = starter.map_err(|error| format!("its start needs a thread: {error}"))?;
        starter.join().unwrap_or_else(|_| Err("its start panicked".to_owned()))
    })
}

/// The program with its arguments, environment and working directory.
fn program_of(spec: &ContainerSpec) -> Option<Command> {
    let (program, first) = spec.command.split_first()?;
    let mut command = Command::new(program);
    command.args(first).args(&spec.args);
    apply_spec(&mut command, spec);
    Some(command)
}

fn apply_spec(command: &mut Command, spec: &ContainerSpec) {
    command.env_clear().env("PATH", DEFAULT_PATH);
    command.envs(spec.env.iter().map(|(name, value)| (name, value)));
    command.current_dir(working_dir_of(spec));
}

/// The directory in which the program starts.
fn working_dir_of(spec: &ContainerSpec) -> &str {
    if spec.working_dir.is_empty() { "/" } else { &spec.working_dir }
}

/// Why the program was not started. The kernel gives the same error for a missing program and a missing working
/// directory, so the directory is checked.
fn unstartable(order: &Order, error: &io::Error) -> String {
    let spec = &order.spec;
    let place = working_dir_of(spec);
    let wrong = match fs::metadata(place) {
        Ok(found) if found.is_dir() => None,
        Ok(_) => Some(io::ErrorKind::NotADirectory.into()),
        Err(wrong) => Some(wrong),
    };
    match wrong {
        Some(wrong) => format!("its working directory {place:?} cannot be entered: {wrong}"),
        None => {
            let program = spec.command.first().map_or("", String::as_str);
            match order.user.filter(|_| error.kind() == io::ErrorKind::PermissionDenied) {
                Some(user) => {
                    format!(
                        "the program {program:?} cannot be started in {place:?} as user {}: {error}",
                        user.uid
                    )
                }
                None => format!("the program {program:?} cannot be started: {error}"),
            }
        }
    }
}

/// Puts the shim into its container's cgroup, affinity, OOM score and umask, so that the program has them from its first
/// instruction. Dropped, it restores the shim's own.
struct Confined<'a> {
    order: &'a Order,
    affinity: Option<CpuSet>,
    oom_score_adj: Option<String>,
    umask: Mode,
}

impl<'a> Confined<'a> {
    fn enter(order: &'a Order) -> io::Result<Confined<'a>> {
        let affinity = affinity::pin(&order.affinity)?;
        let oom_score_adj = expose(order.spec.oom_score_adj);
        let confined = Confined { order, affinity, oom_score_adj, umask: umask(PROGRAM_UMASK) };
        if let Some(place) = &order.cgroup {
            cgroup::enter(&place.container)?;
        }
        Ok(confined)
    }
}

impl Drop for Confined<'_> {
    fn drop(&mut self) {
        umask(self.umask);
        if let Some(place) = &self.order.cgroup
            && let Err(error) = cgroup::enter(&place.shims)
        {
            // The shim then counts towards the container and is killed with it; only the exit code is lost.
            eprintln!("the shim stays in its container's cgroup: {error}");
        }
        if let Some(affinity) = &self.affinity {
            let _ = affinity::restore(affinity);
        }
        if let Some(before) = &self.oom_score_adj
            && let Err(error) = fs::write(OOM_SCORE_ADJ, before)
        {
            eprintln!("the shim is ended as soon as its container when memory is short: {error}");
        }
    }
}

/// Sets the OOM score of this process and of what it starts to the container's: a low score of the agent must not
/// protect its pods. Returns the score before.
fn expose(oom_score_adj: i32) -> Option<String> {
    let before = fs::read_to_string(OOM_SCORE_ADJ).ok()?;
    match fs::write(OOM_SCORE_ADJ, oom_score_adj.to_string()) {
        Ok(()) => Some(before),
        // Without privileges the score cannot be lower than the agent's.
        Err(error) => {
            eprintln!("{OOM_SCORE_ADJ} refused {oom_score_adj}: {error}");
            None
        }
    }
}

/// Waits until the program has exited, kills what it left behind, and returns its exit.
fn finish(order: &Order, files: &Files, run: &Run) -> io::Result<Exit> {
    let main = Pid::from_raw(run.main.pid).ok_or(io::ErrorKind::InvalidData)?;
    wait_until_over(main)?;
    let finished_at = SystemClock::new().wall();

    // Without the record there is no agent that could signal.
    let reaping = File::open(files.run()).ok().filter(|run| run.lock().is_ok());
    run.main.signal_group(Signal::KILL)?;
    let status = reap(main)?;
    drop(reaping);

    end_orphans(order)?;
    let place = order.cgroup.as_ref().map(|place| place.container.as_path());
    let out_of_memory = place.is_some_and(cgroup::ran_out_of_memory);
    if let Some(place) = place {
        cgroup::remove(place);
    }
    let exit = exit_of(status, out_of_memory, run.started_at, finished_at);
    let message = if exit.code == 0 { String::new() } else { last_words(&files.log()) };
    Ok(Exit { message, ..exit })
}

/// The last lines of a log, for the status of a container that failed.
fn last_words(log: &Path) -> String {
    let text = logs::tail(log, LAST_BYTES).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let text = text.trim_end();
    let mut lines: Vec<&str> = text.lines().rev().take(LAST_LINES).collect();
    // The first line may have lost its beginning.
    if lines.len() > 1 && text.len() as u64 + 1 >= LAST_BYTES && lines.len() < LAST_LINES {
        lines.pop();
    }
    lines.reverse();
    lines.join("\n")
}

/// Waits until the process has exited, without reaping it: its pid stays its own. Adopted orphans are reaped meanwhile.
fn wait_until_over(main: Pid) -> io::Result<()> {
    loop {
        retry(|| waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT))?;
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        if retry(|| waitid(WaitId::Pid(main), look))?.is_some() {
            return Ok(());
        }
        for child in processes::own_children()? {
            if child != main {
                // Those that still run stay.
                let _ = retry(|| waitpid(Some(child), WaitOptions::NOHANG));
            }
        }
    }
}

fn reap(main: Pid) -> io::Result<WaitStatus> {
    match retry(|| waitpid(Some(main), WaitOptions::empty()))? {
        Some((_, status)) => Ok(status),
        None => Err(io::Error::other("a process that has ended has no status")),
    }
}

/// Kills and reaps until there is no child left. The children of a killed child are adopted in turn, so in the end no
/// process of the container is left, whatever sessions and groups it made.
fn end_orphans(order: &Order) -> io::Result<()> {
    if let Some(place) = &order.cgroup {
        let _ = cgroup::kill(&place.container);
    }
    end_children()
}

/// Kills and reaps all children of this process, and those that it adopts from them.
pub(super) fn end_children() -> io::Result<()> {
    loop {
        let children = processes::own_children()?;
        for &child in &children {
            // The pid belongs to our child until it is reaped.
            let _ = kill_process(child, Signal::KILL);
        }
        // The list may miss a child that appeared while it was read: block only if there were children to kill.
        let patience = if children.is_empty() { WaitOptions::NOHANG } else { WaitOptions::empty() };
        match retry(|| wait(patience)) {
            Ok(Some(_)) => {}
            Ok(None) => thread::sleep(Duration::from_millis(1)),
            Err(Errno::CHILD) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn exit_of(status: WaitStatus, out_of_memory: bool, started_at: Timestamp, finished_at: Timestamp) -> Exit {
    let signal = status.terminating_signal();
    let code = signal.map_or_else(|| status.exit_status().unwrap_or(NOT_STARTED), |signal| 128 + signal);
    let killed = signal == Some(Signal::KILL.as_raw());
    let reason = match code {
        0 => ExitReason::Completed,
        _ if killed && out_of_memory => ExitReason::OutOfMemory,
        _ => ExitReason::Error,
    };
    Exit { code, signal, reason, message: String::new(), started_at, finished_at }
}

/// Records the exit, however long the disk refuses: no other process knows it.
fn write_down(files: &Files, exit: &Exit) -> io::Result<()> {
    loop {
        match record::write(&files.exit(), exit) {
            // Without its directory the container was removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(error),
            Err(_) => thread::sleep(DISK_RETRY),
            Ok(()) => return Ok(()),
        }
    }
}

/// Replaces this process with a hook of the container. Returns only on an error.
fn become_hook(order: &Path, words: &[OsString]) -> io::Result<()> {
    become_command(order, words, |_, _| {})
}

/// Replaces this process with a command in the container of that order. `prepare` is called before the process loses
/// its privileges. Returns only on an error.
pub(super) fn become_command(
    order: &Path,
    words: &[OsString],
    prepare: impl FnOnce(&mut Command, &Order),
) -> io::Result<()> {
    let files = Files::beside(order);
    let order: Order = record::read(order)?.ok_or_else(|| io::Error::other("the container is gone"))?;
    let (program, args) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(args);
    apply_spec(&mut command, &order.spec);
    if let Some(place) = &order.cgroup {
        cgroup::enter(&place.container)?;
    }
    let run: Option<Run> = record::read(&files.run())?;
    if !order.spec.mounts.is_empty() {
        volumes::join(run.as_ref().map(|run| run.main))?;
    }
    // The container may have been moved to other CPUs since it was ordered.
    if run.is_none_or(|run| affinity::follow(run.main.pid).is_err()) {
        affinity::pin(&order.affinity)?;
    }
    expose(order.spec.oom_score_adj);
    prepare(&mut command, &order);
    umask(PROGRAM_UMASK);
    sandbox::enter(order.user, order.spec.security.privilege)?;
    // It must not outlive the process that waits for it. Set last: a change of the user resets it.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    Err(command.exec())
}

/// Repeats a call that a signal interrupted.
fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ContainerId, Limits, PodLimits, Security};
    use super::*;

    fn order(program: &str, working_dir: &Path) -> Order {
        let pod = "6ba7b810-9dad-11d1-80b4-00c04fd430c8".parse().unwrap();
        let spec = ContainerSpec {
            id: ContainerId { pod, container: "web".to_owned(), attempt: 0 },
            pod_namespace: "default".parse().unwrap(),
            pod_name: "shop".parse().unwrap(),
            command: vec![program.to_owned()],
            args: Vec::new(),
            env: Vec::new(),
            working_dir: working_dir.display().to_string(),
            own_grace_seconds: None,
            limits: Limits::default(),
            oom_score_adj: 0,
            pod_limits: PodLimits::default(),
            security: Security::default(),
            mounts: Vec::new(),
        };
        Order { spec, cgroup: None, affinity: Vec::new(), own_id: None, user: None, volumes: None }
    }

    #[test]
    fn a_start_that_fails_names_the_program_or_the_directory_whichever_is_missing() {
        let root = tempfile::tempdir().unwrap();
        let (missing, file) = (root.path().join("missing"), root.path().join("file"));
        fs::write(&file, "").unwrap();
        for (program, place, expected) in [
            (
                "true",
                missing.as_path(),
                format!("its working directory {missing:?} cannot be entered: No such"),
            ),
            ("true", &file, format!("its working directory {file:?} cannot be entered: not a directory")),
            ("no-such", root.path(), "the program \"no-such\" cannot be started: No such".to_owned()),
            ("no-such", Path::new(""), "the program \"no-such\" cannot be started: No such".to_owned()),
        ] {
            let order = order(program, place);
            let error = program_of(&order.spec).unwrap().spawn().unwrap_err();
            let said = unstartable(&order, &error);
            assert!(said.starts_with(&expected), "{said}, not {expected}");
        }
    }
}

//! Volumes of pods of the real agent, and what the store refuses instead of ignoring it.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use muster_proto::pb;
use muster_proto::pb::volume::Source;
use muster_tests::agent_process::pod_where;
use muster_tests::fixtures::*;
use muster_tests::single_node::SingleNodeCluster;
use muster_tests::store_process::command as muster_command;
use muster_tests::{Resource, TIMEOUT, eventually};
use rustix::process::geteuid;
use tonic::Code;

fn volume(name: &str, source: Source) -> pb::Volume {
    pb::Volume { name: name.to_owned(), source: Some(source) }
}

fn host_path(path: &Path, kind: &str) -> Source {
    Source::HostPath(pb::HostPathVolume { path: path.display().to_string(), r#type: kind.to_owned() })
}

fn memory(size: &str) -> Source {
    Source::EmptyDir(pb::EmptyDirVolume { size_limit: size.to_owned(), medium: "Memory".to_owned() })
}

fn mount(volume: &str, path: &Path, read_only: bool) -> pb::VolumeMount {
    pb::VolumeMount { name: volume.to_owned(), mount_path: path.display().to_string(), read_only }
}

fn container(name: &str, script: &str, mounts: Vec<pb::VolumeMount>) -> pb::Container {
    pb::Container {
        name: name.to_owned(),
        image: "none".to_owned(),
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        volume_mounts: mounts,
        ..Default::default()
    }
}

fn with(name: &str, volumes: Vec<pb::Volume>, containers: Vec<pb::Container>) -> pb::Pod {
    pod(name).on("n1").spec(|spec| (spec.volumes, spec.containers) = (volumes, containers))
}

async fn written(path: &Path) -> String {
    eventually(TIMEOUT, &format!("{} is complete", path.display()), || async {
        fs::read_to_string(path).ok().filter(|text| text.ends_with("done\n"))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn s205_volumes_are_seen_by_the_containers_that_mount_them_and_an_empty_dir_goes_with_its_pod() {
    if !geteuid().is_root() {
        eprintln!("only root can mount");
        return;
    }
    let (cluster, agent) = SingleNodeCluster::new().await;
    let place = |name: &str| cluster.host.file(name);
    let shared = place("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(shared.join("from-the-machine"), "hello\n").unwrap();
    // The mount points are not there yet.
    let (disk, ram, host) = (place("at/disk"), place("at/ram"), place("at/host"));
    let writer = format!(
        "cd {disk}; ls -A | wc -l; echo written > file; df -P {ram} | tail -1; cat {host}/from-the-machine; \
         touch {host}/x 2>/dev/null && echo not read-only; echo done; exec sleep 1000",
        disk = disk.display(),
        ram = ram.display(),
        host = host.display(),
    );
    let reader = format!(
        "until test -s {0}/file; do sleep 0.05; done; cat {0}/file; echo done; exec sleep 1000",
        ram.display()
    );
    let volumes = vec![
        volume("scratch", Source::EmptyDir(pb::EmptyDirVolume::default())),
        volume("fast", memory("4Mi")),
        volume("shared", host_path(&shared, "Directory")),
    ];
    let mounts =
        vec![mount("scratch", &disk, false), mount("fast", &ram, false), mount("shared", &host, true)];
    // The other container sees the same volume at another place.
    let containers = vec![
        container("main", &writer, mounts),
        container("other", &reader, vec![mount("scratch", &ram, false)]),
    ];
    let created = cluster.api.create(with("web", volumes, containers)).await.unwrap();
    let folder = cluster.folder(&created);
    let said = written(&folder.join("0.log")).await;
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "0", "it is empty: {said}");
    assert!(lines[1].split_whitespace().any(|field| field == "4096"), "4 MiB in memory: {said}");
    assert_eq!(&lines[2..], ["hello", "done"], "{said}");
    let other = folder.parent().unwrap().join("other");
    assert_eq!(written(&other.join("0.log")).await, "written\ndone\n");

    // The machine sees none of it, and a command in the container does.
    assert_eq!(fs::read_dir(&disk).unwrap().count() + fs::read_dir(&host).unwrap().count(), 0);
    let mut command = muster_command();
    command.args(["exec", "--store", &cluster.store.url(), "web", "-c", "main", "--", "cat"]);
    command.arg(disk.join("file"));
    let seen = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&seen.stdout), "written\n", "{seen:?}");

    let of_pod = cluster.host.file("state").join("runtime/volumes").join(created.uid());
    assert!(of_pod.join("scratch/file").exists());
    cluster.api.delete::<pb::Pod>("default/web").await.unwrap();
    cluster.gone("web", TIMEOUT).await;
    assert!(!of_pod.exists(), "its emptyDir volumes went with it");
    assert!(shared.join("from-the-machine").exists(), "what belongs to the machine stays");
    drop(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_path_shows_nothing_that_the_containers_user_could_not_reach() {
    if !geteuid().is_root() {
        eprintln!("only root can mount");
        return;
    }
    let (cluster, _agent) = SingleNodeCluster::new().await;
    let hidden = cluster.host.file("hidden");
    fs::create_dir_all(hidden.join("inside")).unwrap();
    fs::set_permissions(&hidden, fs::Permissions::from_mode(0o700)).unwrap();
    let at = cluster.host.file("at");
    let one = |name: &str, source| {
        let mounts = vec![mount("v", &at, false)];
        with(name, vec![volume("v", source)], vec![container("main", "exec sleep 1000", mounts)])
    };
    for (name, source, expected) in [
        ("hidden", host_path(&hidden.join("inside"), ""), "Permission denied"),
        ("missing", host_path(Path::new("/no/such/path"), ""), "/no/such/path"),
        ("no-dir", host_path(Path::new("/etc/passwd"), "Directory"), "it is no Directory"),
    ] {
        cluster.api.create(one(name, source)).await.unwrap();
        pod_where(&cluster.api, &format!("default/{name}"), "it says why it does not start", |pod| {
            let text = format!("{:?}", pod.status);
            text.contains("volume v cannot be mounted") && text.contains(expected)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s206_what_a_program_would_miss_is_refused_by_name_and_the_rest_is_kept_with_a_warning() {
    let (cluster, _agent) = SingleNodeCluster::new().await;
    let object = || pb::ObjectVolume { name: "o".to_owned() };
    for (source, expected) in [
        (Source::Secret(object()), "spec.volumes[0].secret: is not supported"),
        (Source::ConfigMap(object()), "spec.volumes[0].configMap: is not supported"),
        (Source::PersistentVolumeClaim(object()), "spec.volumes[0].persistentVolumeClaim: is not supported"),
    ] {
        let containers = vec![container("main", "true", vec![])];
        let refused = cluster.api.create(with("a", vec![volume("v", source)], containers)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains(expected), "{refused}");
    }
    let manifest =
        |spec: &str| format!("{{apiVersion: v1, kind: Pod, metadata: {{name: kept}}, spec: {{{spec}}}}}");
    let apply = async |spec: &str| {
        let file = cluster.host.file("pod.yaml");
        fs::write(&file, manifest(spec)).unwrap();
        let mut command = muster_command();
        command.args(["apply", "--store", &cluster.store.url(), "-f"]).arg(file);
        let applied = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        (applied.status.code(), String::from_utf8_lossy(&applied.stderr).into_owned())
    };
    let container = "containers: [{name: main, image: none, command: ['true']}]";
    for (field, expected) in [
        ("volumes: [{name: v, nfs: {server: a, path: /b}}]", "unknown field spec.volumes[0].nfs"),
        ("hostPID: true", "unknown field spec.hostPID"),
        ("dnsPolicy: Default", "unknown field spec.dnsPolicy"),
    ] {
        let (code, said) = apply(&format!("{container}, {field}")).await;
        assert!(code == Some(2) && said.contains(expected), "{field}: {said}");
    }
    let (code, said) = apply(&format!("{container}, serviceAccountName: me")).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("warning: spec.serviceAccountName has no effect"), "{said}");
}

//! Three stores on three members of etcd, each in a network namespace of its own, and what can happen to them.

use std::path::Path;
use std::time::Duration;

use muster_etcd::requests::get;
use muster_etcd::{Client, TlsFiles};
use muster_tests::disk::{Frozen, SmallDisk};
use muster_tests::etcd::cluster::{Members, Place};
use muster_tests::eventually;
use muster_tests::network::Network;
use muster_tests::store_process::{SeededRandom, StoreLaunch, StoreProcess};
use rustix::process::Signal;
use tokio::task::block_in_place;

/// How many members etcd has, and how many stores there are.
pub(super) const COUNT: usize = 3;
/// On a busy machine etcd may elect its leader several times before a store leads for long.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
const PORT: u16 = 7400;

/// What happens in one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    KillLeader,
    PauseLeader,
    /// It hands over.
    StopLeader,
    KillFollower,
    PauseFollower,
    KillMember,
    PauseMember,
    /// The disk of a member takes no writes.
    FreezeDisk,
    CutLeaderFromEtcd,
    CutLeaderFromFollowers,
    /// Only in one direction.
    LoseRequestsToEtcd,
    LoseAnswersFromEtcd,
    /// A member is cut from the others, and not from the stores.
    CutMemberFromPeers,
}

impl Fault {
    pub(super) const ALL: [Fault; 13] = [
        Fault::KillLeader,
        Fault::PauseLeader,
        Fault::StopLeader,
        Fault::KillFollower,
        Fault::PauseFollower,
        Fault::KillMember,
        Fault::PauseMember,
        Fault::FreezeDisk,
        Fault::CutLeaderFromEtcd,
        Fault::CutLeaderFromFollowers,
        Fault::LoseRequestsToEtcd,
        Fault::LoseAnswersFromEtcd,
        Fault::CutMemberFromPeers,
    ];
}

/// A fault that has begun, and the store or member that it hit.
pub(super) struct Active<'d> {
    fault: Fault,
    hit: usize,
    /// Nothing that waits for a frozen disk can be killed, so this must go before the cluster.
    frozen: Option<Frozen<'d>>,
}

/// The running parts. What is in the network goes before it.
pub(super) struct Cluster {
    stores: Vec<Option<StoreProcess>>,
    launches: Vec<StoreLaunch>,
    members: Members,
    etcd: Client,
    network: Network,
}

/// The host of a store in the network; those of members come first.
fn host(store: usize) -> usize {
    COUNT + store
}

impl Cluster {
    /// Starts all of them. The first member's files are on that disk.
    pub(super) async fn start(etcd: &str, directory: &Path, disk: &SmallDisk, disk_path: &Path) -> Cluster {
        let network = Network::of(2 * COUNT);
        let place = |member: usize| {
            let mut wrapper = vec!["nsenter".to_owned(), network.nsenter(member)];
            let directory = match member {
                0 => disk_path.join("etcd"),
                other => directory.join(format!("etcd-{other}")),
            };
            if member == 0 {
                wrapper.insert(1, disk.nsenter());
            }
            let wrapper = wrapper.into_iter().map(Into::into).collect();
            Place { host: network.address(member).to_string(), wrapper, directory }
        };
        let places = (0..COUNT).map(place).collect();
        let members = Members::start(etcd, places, &directory.join("logs"));
        let urls: Vec<String> = members.urls().split(',').map(str::to_owned).collect();
        let client = Client::new(&urls, &TlsFiles::default()).expect("these are URLs");
        let launch = |store: usize| {
            let address = format!("{}:{PORT}", network.address(host(store)));
            StoreLaunch::on(&directory.join(format!("store-{store}")))
                .everywhere_at(PORT)
                .within(["nsenter".to_owned(), network.nsenter(host(store))])
                .flag("--engine", "etcd")
                .flag("--etcd-endpoints", &members.urls())
                .flag("--advertise", &address)
        };
        let launches: Vec<StoreLaunch> = (0..COUNT).map(launch).collect();
        let stores = launches.iter().map(|launch| Some(launch.spawn())).collect();
        let cluster = Cluster { stores, launches, members, etcd: client, network };
        cluster.leader().await;
        cluster
    }

    /// Where clients reach the stores.
    pub(super) fn urls(&self) -> Vec<String> {
        (0..COUNT).map(|store| format!("http://{}:{PORT}", self.network.address(host(store)))).collect()
    }

    /// The store that leads, as etcd has it.
    async fn leader(&self) -> usize {
        eventually(PATIENCE, "a store leads", || async {
            let found = self.etcd.range(get("/muster/leader"), Duration::from_secs(2)).await.ok()?;
            let address = String::from_utf8(found.kvs.first()?.value.to_vec()).ok()?;
            self.urls().iter().position(|url| *url == format!("http://{address}"))
        })
        .await
    }

    fn store(&self, index: usize) -> &StoreProcess {
        self.stores[index].as_ref().expect("one fault at a time, and it has ended")
    }

    fn kill(&mut self, index: usize) {
        let store = self.stores[index].take();
        block_in_place(|| store.expect("one fault at a time").kill());
    }

    /// Lets a fault begin.
    pub(super) async fn begin<'d>(
        &mut self,
        fault: Fault,
        random: &mut SeededRandom,
        disk: &'d SmallDisk,
    ) -> Active<'d> {
        let leader = self.leader().await;
        let follower = (leader + 1 + random.below(2) as usize) % COUNT;
        let member = random.below(COUNT as u64) as usize;
        let mut frozen = None;
        let hit = match fault {
            Fault::KillFollower | Fault::PauseFollower => follower,
            Fault::KillMember | Fault::PauseMember | Fault::CutMemberFromPeers => member,
            Fault::FreezeDisk => 0,
            _ => leader,
        };
        match fault {
            Fault::KillLeader | Fault::KillFollower => self.kill(hit),
            Fault::PauseLeader | Fault::PauseFollower => self.store(hit).signal(Signal::STOP),
            Fault::StopLeader => self.store(hit).signal(Signal::TERM),
            Fault::KillMember => self.members.kill(hit),
            Fault::PauseMember => self.members.signal(hit, Signal::STOP),
            Fault::FreezeDisk => frozen = Some(disk.freeze()),
            Fault::CutLeaderFromEtcd => (0..COUNT).for_each(|member| self.network.cut(host(hit), member)),
            Fault::CutLeaderFromFollowers => {
                let others = (0..COUNT).filter(|store| *store != hit);
                others.for_each(|other| self.network.cut(host(hit), host(other)));
            }
            Fault::LoseRequestsToEtcd => {
                (0..COUNT).for_each(|member| self.network.drop_packets(host(hit), member));
            }
            Fault::LoseAnswersFromEtcd => {
                (0..COUNT).for_each(|member| self.network.drop_packets(member, host(hit)));
            }
            Fault::CutMemberFromPeers => {
                let others = (0..COUNT).filter(|other| *other != hit);
                others.for_each(|other| self.network.cut(hit, other));
            }
        }
        Active { fault, hit, frozen }
    }

    /// Ends a fault.
    pub(super) fn end(&mut self, active: Active<'_>) {
        let Active { fault, hit, frozen } = active;
        drop(frozen);
        match fault {
            Fault::KillLeader | Fault::KillFollower => self.stores[hit] = Some(self.launches[hit].spawn()),
            Fault::PauseLeader | Fault::PauseFollower => self.store(hit).signal(Signal::CONT),
            Fault::StopLeader => {
                let mut stopped = self.stores[hit].take().expect("one fault at a time");
                let status = block_in_place(|| stopped.wait());
                assert_eq!(status.code(), Some(0), "{}", stopped.log());
                self.stores[hit] = Some(self.launches[hit].spawn());
            }
            Fault::KillMember => self.members.start_again(hit),
            Fault::PauseMember => self.members.signal(hit, Signal::CONT),
            Fault::FreezeDisk => {}
            _ => self.network.heal(),
        }
    }

    /// Stores that should run and do not, with their logs.
    pub(super) fn exited(&mut self) -> Vec<String> {
        let stores = self.stores.iter_mut().flatten();
        stores.filter_map(|store| (!store.is_running()).then(|| store.log())).collect()
    }
}

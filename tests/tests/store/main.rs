//! The store's API over a real socket, without agents or a controller: a store in the test's own process, or for
//! hostile callers one in a process of its own.

mod audit;
mod authorization;
mod budgets;
mod decisions;
mod fencing;
mod heartbeat;
mod hostile_callers;
mod joining;
mod limits;
mod objects;
mod pods;
mod priority_classes;
mod server_role;
mod status;
mod store_id;
mod watch;

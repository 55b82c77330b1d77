//! What a pod may take of the machine: memory under pressure, swap, processors, and the priority that decides.

pub mod oom_score;
pub mod priority;
pub mod swap;
pub mod topology;

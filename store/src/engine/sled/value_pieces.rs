//! How values are stored in sled's tree: a short value is one entry, a longer one several pieces.

use std::collections::BTreeMap;

use bytes::Bytes;
use sled::Db;

use super::failed;
use super::sync_window::Change;
use super::value_codec::{self, Piece};
use crate::engine::{EngineError, Transaction};

/// Keys of whole values and of a split value's first piece.
pub(super) const VALUES: u8 = b'd';
/// Keys of the further pieces of a split value.
const PIECES: u8 = b'p';

pub(super) fn value_key(key: &[u8]) -> Vec<u8> {
    let mut full = Vec::with_capacity(key.len() + 1);
    full.push(VALUES);
    full.extend_from_slice(key);
    full
}

pub(super) fn piece_key(key: &[u8], index: usize) -> Vec<u8> {
    let mut full = Vec::with_capacity(key.len() + 5);
    full.push(PIECES);
    full.extend_from_slice(key);
    // A value has at most a few hundred pieces, because the API limits the size of records.
    full.extend_from_slice(&(index as u32).to_be_bytes());
    full
}

/// The changes of the tree's entries that a transaction needs, in the order of their keys.
pub(super) fn changes_of(db: &Db, transaction: &Transaction) -> Result<Vec<Change>, EngineError> {
    let mut changes = BTreeMap::new();
    let mut change = |key: Vec<u8>, value, replaces| {
        changes.insert(key.clone(), Change { key, value, replaces: replaces as u64 });
    };
    for key in &transaction.deletes {
        let replaces = remove_pieces(db, key, &mut change)?;
        change(value_key(key), None, replaces);
    }
    for (key, value) in &transaction.puts {
        let replaces = remove_pieces(db, key, &mut change)?;
        let (first, following) = value_codec::encode(value);
        change(value_key(key), Some(first), replaces);
        for (index, piece) in following.into_iter().enumerate() {
            // If it replaces a piece, that one most probably has the same length.
            let replaces = if replaces > 0 { piece.len() } else { 0 };
            change(piece_key(key, index), Some(piece), replaces);
        }
    }
    Ok(changes.into_values().collect())
}

/// Removes the further pieces of a value that is about to be replaced, and returns the length of its first piece.
fn remove_pieces(
    db: &Db,
    key: &[u8],
    change: &mut impl FnMut(Vec<u8>, Option<Vec<u8>>, usize),
) -> Result<usize, EngineError> {
    // Revisions and packs are written once under a new key, so this look-up is
    // almost always a miss in the cached tree.
    let Some(stored) = db.get(value_key(key)).map_err(failed)? else { return Ok(0) };
    if let Piece::First { following, .. } = value_codec::decode(&stored).map_err(EngineError::Damaged)? {
        for index in 0..following {
            change(piece_key(key, index), None, value_codec::PIECE);
        }
    }
    Ok(stored.len())
}

pub(super) fn get(db: &Db, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
    match db.get(value_key(key)).map_err(failed)? {
        Some(stored) => read_whole(db, key, &stored).map(Some),
        None => Ok(None),
    }
}

pub(super) fn read_whole(db: &Db, key: &[u8], stored: &[u8]) -> Result<Bytes, EngineError> {
    let damaged = |reason: String| EngineError::Damaged(format!("key {}: {reason}", key.escape_ascii()));
    match value_codec::decode(stored).map_err(damaged)? {
        Piece::Whole(value) => Ok(Bytes::copy_from_slice(value)),
        Piece::Next(_) => Err(damaged("a following piece stands where a value begins".into())),
        Piece::First { following, value } => {
            let mut whole = value.to_vec();
            for index in 0..following {
                let piece = db.get(piece_key(key, index)).map_err(failed)?;
                let piece =
                    piece.ok_or_else(|| damaged(format!("piece {index} of {following} is missing")))?;
                match value_codec::decode(&piece).map_err(damaged)? {
                    Piece::Next(value) => whole.extend_from_slice(value),
                    _ => return Err(damaged(format!("piece {index} is not a following piece"))),
                }
            }
            Ok(whole.into())
        }
    }
}

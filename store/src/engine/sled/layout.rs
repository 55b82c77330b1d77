//! How values lie in sled's tree: a short one is an entry, a longer one several.

use std::collections::BTreeMap;

use bytes::Bytes;
use sled::Db;

use super::codec::{self, Piece};
use super::failed;
use super::window::Change;
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
    // A value has at most a few hundred pieces; the API's limit on records sees to it.
    full.extend_from_slice(&(index as u32).to_be_bytes());
    full
}

/// What a transaction makes of the tree's entries, in the order of their keys.
pub(super) fn changes_of(db: &Db, transaction: &Transaction) -> Result<Vec<Change>, EngineError> {
    let mut changes = BTreeMap::new();
    let mut change = |key: Vec<u8>, value, replaces| {
        changes.insert(key.clone(), Change { key, value, replaces: replaces as u64 });
    };
    for key in &transaction.deletes {
        let replaces = clear(db, key, &mut change)?;
        change(value_key(key), None, replaces);
    }
    for (key, value) in &transaction.puts {
        let replaces = clear(db, key, &mut change)?;
        let (first, further) = codec::encode(value);
        change(value_key(key), Some(first), replaces);
        for (index, piece) in further.into_iter().enumerate() {
            // It may take the place of a piece, which most probably is as long.
            let replaces = if replaces > 0 { piece.len() } else { 0 };
            change(piece_key(key, index), Some(piece), replaces);
        }
    }
    Ok(changes.into_values().collect())
}

/// Removes the further pieces of a value that is about to go, and says how long the rest of it is.
fn clear(
    db: &Db,
    key: &[u8],
    change: &mut impl FnMut(Vec<u8>, Option<Vec<u8>>, usize),
) -> Result<usize, EngineError> {
    // Revisions and packs are written once under a new key, so this look-up is
    // almost always a miss in the cached tree.
    let Some(stored) = db.get(value_key(key)).map_err(failed)? else { return Ok(0) };
    if let Piece::First { further, .. } = codec::decode(&stored).map_err(EngineError::Damaged)? {
        for index in 0..further {
            change(piece_key(key, index), None, codec::PIECE);
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
    match codec::decode(stored).map_err(damaged)? {
        Piece::Whole(value) => Ok(Bytes::copy_from_slice(value)),
        Piece::Further(_) => Err(damaged("a further piece stands where a value begins".into())),
        Piece::First { further, value } => {
            let mut whole = value.to_vec();
            for index in 0..further {
                let piece = db.get(piece_key(key, index)).map_err(failed)?;
                let piece = piece.ok_or_else(|| damaged(format!("piece {index} of {further} is missing")))?;
                match codec::decode(&piece).map_err(damaged)? {
                    Piece::Further(value) => whole.extend_from_slice(value),
                    _ => return Err(damaged(format!("piece {index} is not a further piece"))),
                }
            }
            Ok(whole.into())
        }
    }
}

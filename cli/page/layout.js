// Where the zones and tiles of the map are. Pure: sizes in, boxes out.

/** Space around the tiles of a zone, and above them for its name. */
export const MARGIN = 16,
  LABEL = 30;
/** The least width of a zone, so that its name can be read. */
const LEAST = 112;

/** How tiles are drawn: as cards with words, as chips with a name, or as plain tiles. */
export const CARD = 'card',
  CHIP = 'chip',
  TILE = 'tile';

const kindOf = (nodes) => (nodes <= 24 ? CARD : nodes <= 200 ? CHIP : TILE);
/** The heights that a tile may have for its width, and its largest width. */
const SHAPE = { [CARD]: [[0.4, 0.46, 0.52, 0.56], 224], [CHIP]: [[0.3, 0.36, 0.42, 0.5], 136], [TILE]: [[1], 46] };

/**
 * Boxes for zones of these sizes, in their order, with all tiles of one size: the largest at which everything fits.
 * Returns the size and kind of the tiles, and for each zone its box, columns and rows.
 */
export function layOut(sizes, width, height) {
  const total = sizes.reduce((sum, size) => sum + size, 0),
    kind = kindOf(total),
    [aspects, largest] = SHAPE[kind];
  if (!sizes.length) return { kind, tile: 1, aspect: 1, boxes: [] };
  const wide = Math.max(LEAST + MARGIN, width - 8),
    high = Math.max(60, height - 10);
  const sized = aspects.map((aspect) => ({
    aspect,
    tile: steady(largestTile(sizes, aspect, largest, wide, high), kind),
  }));
  // The widest tiles, and of equally wide ones the highest.
  const { aspect, tile } = sized.reduce((best, next) => (next.tile >= best.tile ? next : best));
  const { rows, height: used } = rowsOf(sizes, tile, aspect, wide);
  return {
    kind,
    tile,
    aspect,
    boxes: boxesOf(sizes, rows, tile, aspect, width, 5 + Math.max(0, Math.min(28, (high - used) / 2))),
  };
}

/** The largest width of tiles at which all zones fit. */
function largestTile(sizes, aspect, largest, width, height) {
  let low = 0.3,
    high = largest;
  for (let k = 0; k < 22; k++) {
    const middle = (low + high) / 2;
    if (rowsOf(sizes, middle, aspect, width).height <= height) low = middle;
    else high = middle;
  }
  return low;
}

/** A size that does not make tiles of different widths by rounding. */
function steady(tile, kind) {
  if (kind !== TILE) return Math.floor(tile / 2) * 2;
  return tile >= 8 ? Math.floor(tile) : tile >= 3 ? Math.floor(tile * 2) / 2 : Math.floor(tile * 8) / 8 || 0.125;
}

const widthOf = (size, rows, tile) => Math.max(Math.ceil(size / rows) * tile, LEAST) + MARGIN;

/**
 * Breaks the zones into rows, in their order, so that all rows together are as low as they can be: the best way up to
 * each zone follows from the best ways up to the zones before it.
 */
function rowsOf(sizes, tile, aspect, width) {
  const best = [0],
    from = [0],
    depth = [0];
  for (let end = 1; end <= sizes.length; end++) {
    best[end] = Infinity;
    let nodes = 0;
    // A row has at least one zone, and never more than fit with their names.
    for (let start = end - 1; start >= 0 && (end - start === 1 || (end - start) * (LEAST + MARGIN) <= width); start--) {
      nodes += sizes[start];
      const rows = rowsFor(sizes, start, end, nodes, tile, width);
      const height = best[start] + rows * tile * aspect + LABEL;
      if (height < best[end] || end - start === 1) [best[end], from[end], depth[end]] = [height, start, rows];
    }
  }
  const rows = [];
  for (let end = sizes.length; end > 0; end = from[end]) rows.unshift({ start: from[end], end, rows: depth[end] });
  return { height: best[sizes.length], rows };
}

/** How many rows of tiles zones need side by side; Infinity if they are too wide for one row of zones. */
function rowsFor(sizes, start, end, nodes, tile, width) {
  const free = width - (end - start) * MARGIN,
    most = Math.max(...sizes.slice(start, end), 1);
  let rows = Math.max(1, Math.floor((nodes * tile) / Math.max(1, free)));
  const fits = () => {
    let used = 0;
    for (let k = start; k < end; k++) used += widthOf(sizes[k], rows, tile);
    return used <= width;
  };
  while (rows < most && !fits()) rows++;
  return fits() ? rows : Infinity;
}

function boxesOf(sizes, rows, tile, aspect, width, top) {
  const boxes = [];
  let y = top;
  for (const row of rows) {
    let used = 0;
    for (let k = row.start; k < row.end; k++) used += widthOf(sizes[k], row.rows, tile);
    let x = 4 + Math.max(0, (width - 8 - used) / 2);
    for (let k = row.start; k < row.end; k++) {
      const columns = Math.max(1, Math.ceil(sizes[k] / row.rows)),
        w = widthOf(sizes[k], row.rows, tile);
      boxes.push({
        x,
        y,
        w,
        h: row.rows * tile * aspect + LABEL,
        left: Math.round(x + MARGIN / 2),
        top: Math.round(y + LABEL - 8),
        columns,
        rows: Math.max(1, Math.ceil(sizes[k] / columns)),
        size: sizes[k],
      });
      x += w;
    }
    y += row.rows * tile * aspect + LABEL;
  }
  return boxes;
}

// The keyboard: every act of the page has a key, and `?` lists them.

/** What each key does, for the help and for `listen`. */
export const KEYS = [
  ['/', 'Search or filter'],
  ['N', 'Next node in trouble'],
  ['Shift N', 'The one before'],
  ['Arrow keys', 'Move on the map'],
  ['Enter', 'Explain the node'],
  ['+ \u2212 0', 'Closer, further, all'],
  ['Z', 'Next zone'],
  ['T', 'Map or list'],
  ['D', 'Light or dark'],
  ['Esc', 'Step back'],
  ['?', 'These keys'],
];

/** Calls the act of a key, unless somebody is typing. */
export function listen(acts) {
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]')) return;
    if (event.target.matches('input, select, textarea')) {
      if (event.key === 'Escape') acts.leaveSearch();
      if (event.key === 'Enter') acts.enterSearch();
      return;
    }
    const act = {
      '/': acts.search,
      n: () => acts.trouble(1),
      N: () => acts.trouble(-1),
      '+': () => acts.zoom(1.6),
      '=': () => acts.zoom(1.6),
      '-': () => acts.zoom(1 / 1.6),
      0: acts.fit,
      z: acts.nextZone,
      t: acts.toggleView,
      d: acts.theme,
      '?': acts.help,
      Escape: acts.back,
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}

/** Arrow keys on the map. */
export function listenOnMap(canvas, move, explain) {
  const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  canvas.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = steps[event.key];
    if (!step && event.key !== 'Enter') return;
    event.preventDefault();
    if (step) move(...step);
    else explain();
  });
}

// Light or dark, and the colours as the canvas needs them.

import { COLOURS } from './fleet.js';

const KEY = 'muster-theme';
const root = document.documentElement;

/** The colours of the style sheet by name. */
export const colours = {};
const listeners = [];

function read() {
  const style = getComputedStyle(root);
  for (const name of [
    'panel',
    'sunk',
    'line',
    'line2',
    'ink',
    'ink2',
    'ink3',
    'accent',
    'mark',
    'warn',
    'bad',
    'life',
    ...COLOURS,
  ])
    colours[name] = style.getPropertyValue(`--${name}`).trim();
  for (const listener of listeners) listener();
}

/** Calls back when the colours have changed. */
export const onTheme = (listener) => listeners.push(listener);

function set(theme) {
  root.dataset.theme = theme;
  read();
}

const preferred = matchMedia('(prefers-color-scheme: dark)');
const stored = () => {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // A browser may refuse to store anything.
  }
};

/** Takes the other theme, and keeps it for this browser. */
export function toggleTheme() {
  const theme = root.dataset.theme === 'dark' ? 'light' : 'dark';
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // Then it lasts as long as the page.
  }
  set(theme);
}

set(stored() ?? (preferred.matches ? 'dark' : 'light'));
preferred.addEventListener('change', () => {
  if (!stored()) set(preferred.matches ? 'dark' : 'light');
});

/** #rrggbb as three numbers. */
export const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

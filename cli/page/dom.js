// Elements without markup: every text is set as text, every width through the style object, as the page's policy asks.

const SVG = 'http://www.w3.org/2000/svg';

/**
 * Makes an element. Properties are attributes, except `css`, an object of style properties; `false`, `null` and
 * `undefined` leave an attribute out. Children are elements, texts, or lists of them.
 */
export function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (name === 'css') setCss(element, value);
    else if (value !== false && value != null) element.setAttribute(name, value === true ? '' : value);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(element, child);
    else if (child != null && child !== false) element.append(child);
  }
}

function setCss(element, css) {
  element.css = css;
  for (const [name, value] of Object.entries(css)) element.style.setProperty(name, value);
}

/** A symbol of the page, such as `s3` for the mark of a state. */
export function icon(id, kind = 'g') {
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('class', kind);
  svg.setAttribute('aria-hidden', 'true');
  const use = document.createElementNS(SVG, 'use');
  use.setAttribute('href', `#${id}`);
  svg.append(use);
  return svg;
}

/** A countdown to a moment of the controller's clock; `tick` keeps it running. */
export const until = (millis, kind = 'cd') => h('b', { class: kind, 'data-until': millis });

/**
 * Makes the children of an element equal to these, and keeps the elements that can be kept: the focus, the place of the
 * reader and the selection survive a refresh.
 */
export function show(element, ...children) {
  const next = document.createDocumentFragment();
  append(next, children);
  morphChildren(element, next);
}

function morphChildren(element, next) {
  let old = element.firstChild;
  for (let fresh = next.firstChild; fresh;) {
    const following = fresh.nextSibling;
    if (!old) element.append(fresh);
    else if (isSame(old, fresh)) {
      morph(old, fresh);
      old = old.nextSibling;
    } else {
      const kept = fresh.nodeType === 1 && fresh.dataset?.key ? find(old, fresh) : null;
      if (kept) {
        element.insertBefore(kept, old);
        morph(kept, fresh);
      } else element.insertBefore(fresh, old);
    }
    fresh = following;
  }
  while (old) {
    const following = old.nextSibling;
    old.remove();
    old = following;
  }
}

const key = (node) => (node.nodeType === 1 ? (node.dataset?.key ?? '') : '');
const isSame = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && key(a) === key(b);

function find(from, fresh) {
  for (let node = from; node; node = node.nextSibling) if (isSame(node, fresh)) return node;
  return null;
}

function morph(old, fresh) {
  if (old.nodeType === 3) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (name !== 'style' && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (name !== 'style' && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (fresh.css) {
    for (const name of Object.keys(old.css ?? {})) if (!(name in fresh.css)) old.style.removeProperty(name);
    setCss(old, fresh.css);
  }
  // A countdown has a text of its own, which is not in the fresh element.
  if (!old.dataset?.until) morphChildren(old, fresh);
}

/** Writes what is left of every countdown. */
export function tick(now, text) {
  for (const element of document.querySelectorAll('[data-until]')) {
    const left = text(+element.dataset.until - now);
    if (element.textContent !== left) element.textContent = left;
  }
}

export const byId = (id) => document.getElementById(id);

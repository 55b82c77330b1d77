// The feed: server-sent events that this page's own server makes.

/** A tab that nobody has looked at for this long is not fed: a browser has few connections for each server. */
const HIDDEN_LIMIT = 30000;
const RETRY = 2000;

/**
 * Follows the feed. `handlers` has a function for each event, and `link`, which is called with whether the feed is open.
 */
export class Feed {
  constructor(handlers) {
    this.handlers = handlers;
    this.heard = performance.now();
    this.isOpen = false;
    this.timer = 0;
    document.addEventListener('visibilitychange', () => this.shownOrHidden());
    this.open();
  }

  open() {
    if (this.source) return;
    const source = new EventSource('/api/feed');
    this.source = source;
    for (const [name, handle] of Object.entries(this.handlers)) {
      if (name === 'link') continue;
      source.addEventListener(name, ({ data }) => {
        this.heard = performance.now();
        this.link(true);
        handle(JSON.parse(data));
      });
    }
    source.addEventListener('error', () => {
      this.link(false);
      // The browser tries again by itself, unless the server has refused.
      if (source.readyState === EventSource.CLOSED) {
        this.close();
        setTimeout(() => this.open(), RETRY);
      }
    });
  }

  close() {
    this.source?.close();
    this.source = null;
  }

  link(isOpen) {
    if (this.isOpen === isOpen) return;
    this.isOpen = isOpen;
    this.handlers.link(isOpen);
  }

  shownOrHidden() {
    clearTimeout(this.timer);
    if (document.hidden) this.timer = setTimeout(() => this.close(), HIDDEN_LIMIT);
    else if (!this.source) {
      this.heard = performance.now();
      this.open();
    }
  }
}

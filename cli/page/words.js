// Numbers, times and names as the page writes them.

const whole = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });

export const number = (value) => whole.format(value);

/** `1 node`, `2 nodes`. */
export const many = (count, word) => `${number(count)} ${word}${count === 1 ? '' : 's'}`;

const two = (value) => String(Math.floor(value)).padStart(2, '0');

/** A time to come: `0:07`, `5:24`, `1 h 7 min`; `now` when it has come. */
export function countdown(millis) {
  const seconds = Math.ceil(millis / 1000);
  if (seconds <= 0) return 'now';
  return seconds < 3600 ? `${Math.floor(seconds / 60)}:${two(seconds % 60)}` : span(seconds);
}

/** A length of time in seconds: `12 s`, `3 min 5 s`, `1 h 7 min`, `39 h`, `2 d 13 h`; `never` if it has no end. */
export function span(seconds) {
  if (!Number.isFinite(seconds)) return 'never';
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return s < 600 && s % 60 ? `${Math.floor(s / 60)} min ${s % 60} s` : `${Math.floor(s / 60)} min`;
  if (s < 36000) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  if (s < 172800) return `${Math.round(s / 3600)} h`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** A time of day in UTC, with the date if it is not of the last day. */
export function moment(millis, now = Date.now()) {
  const date = new Date(millis);
  const time = `${two(date.getUTCHours())}:${two(date.getUTCMinutes())}:${two(date.getUTCSeconds())}`;
  return Math.abs(now - millis) < 86400000 ? time : `${date.toISOString().slice(0, 10)} ${time}`;
}

/** The milliseconds of a time in an answer; NaN if there is none. */
export const millis = (text) => (text ? Date.parse(text) : NaN);

/** The milliseconds of a duration in an answer, such as `40s` or `1.5s`. */
export const duration = (text) => (text ? parseFloat(text) * 1000 : NaN);

/** The name of a zone for people: without the slash of a region or zone that it does not have. */
export const zoneName = (name) => name.replace(/^\/|\/$/g, '') || 'no zone';

/** `FullDisruption` of `ZONE_STATE_FULL_DISRUPTION`, given the length of the prefix. */
export const enumWord = (value, prefix) =>
  (value || '')
    .replace(prefix, '')
    .toLowerCase()
    .replace(/(^|_)(\w)/g, (_, __, letter) => letter.toUpperCase());

/** A rate of nodes. */
export const rate = (perSecond) => (perSecond > 0 ? `${+perSecond.toPrecision(3)}/s` : 'stopped');

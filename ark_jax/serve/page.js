"use strict";

const byId = id => document.getElementById(id);
const [search, key, status, answer, results] = ["search", "key", "status", "answer", "results"].map(byId);
let token = "", running = null;

function say(message, wrong = false) {
  status.textContent = message;
  status.classList.toggle("wrong", wrong);
}

// The JSON of a reply. A reply without success is an error with the server's message.
async function post(path, body, signal) {
  const headers = {"content-type": "application/json"};
  if (token) headers.authorization = "Bearer " + token;
  const reply = await fetch(path, {method: "POST", headers, body: JSON.stringify(body), signal});
  const value = await reply.json();
  if (reply.status === 401) key.hidden = false;
  if (!reply.ok) throw new Error(value.error);
  return value;
}

// Replaces the passages. Those that the reader has opened stay open, and keep the focus.
function show(html) {
  const details = () => [...results.querySelectorAll("details")];
  const open = details().map(box => box.open);
  const focused = details().findIndex(box => box.contains(document.activeElement));
  const tabs = () => [...results.querySelectorAll(".tabs input")], tab = tabs().findIndex(x => x.checked);
  results.innerHTML = html;
  if (tab >= 0) tabs()[tab].checked = true;
  details().forEach((box, i) => { box.open = open[i] || false; });
  if (focused >= 0) details()[focused]?.querySelector("summary").focus();
}

async function ask(question) {
  running?.abort();
  running = new AbortController();
  const {signal} = running;
  answer.textContent = results.textContent = "";
  byId("examples")?.remove();
  say("Searching …");
  try {
    const found = await post("page/search", {question}, signal);
    show(found.results);
    say(found.status);
    if (answer.dataset.reader !== "yes") return;
    say(found.status + " The reader is asked …");
    const read = await post("page/answer", {question}, signal);
    answer.innerHTML = read.answer;
    show(read.results);
    say(found.status);
  } catch (error) {
    if (error.name !== "AbortError") say(error.message || "The server does not answer.", true);
  }
}

search.addEventListener("submit", event => {
  event.preventDefault();
  const question = byId("question").value;
  if (question !== asked()) history.pushState(null, "", "?q=" + encodeURIComponent(question));
  ask(question);
});

/* The question in the address. */
const asked = () => new URLSearchParams(location.search).get("q") || "";
const askAddress = () => { byId("question").value = asked(); if (asked()) ask(asked()); };
addEventListener("popstate", askAddress);
askAddress();

key.addEventListener("submit", event => {
  event.preventDefault();
  token = byId("token").value;
  key.hidden = true;
  search.requestSubmit();
});

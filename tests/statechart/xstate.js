// Runs charts in XState v5, for test_xstate.py: reads [[definition, events], ...], writes states, trace and status per step.
const { createMachine, createActor, raise } = require("xstate");
const cases = JSON.parse(require("fs").readFileSync(0, "utf8"));
const LIMIT = 3000;
let trace = [];

function action(each) {
  if (each.type === "raise") return raise({ type: each.params.event });
  const label = each.params.label;
  return () => {
    trace.push(label);
    if (trace.length > LIMIT) throw new Error("no rest");
  };
}
const actions = (given) => given && given.map(action);
const transition = (given) => given && { ...given, actions: actions(given.actions) };

function state(given) {
  const made = { ...given, entry: actions(given.entry), exit: actions(given.exit) };
  if (given.on) made.on = Object.fromEntries(Object.entries(given.on).map(([key, value]) => [key, transition(value)]));
  if (given.onDone) made.onDone = transition(given.onDone);
  if (given.states) {
    made.states = Object.fromEntries(Object.entries(given.states).map(([key, value]) => [key, state(value)]));
  }
  return made;
}

const results = cases.map(([definition, events]) => {
  trace = [];
  const actor = createActor(createMachine(state(definition)));
  actor.subscribe({ error() {} });
  const seen = () => {
    const snapshot = actor.getSnapshot();
    const atomic = snapshot._nodes.filter((node) => node.type === "atomic" || node.type === "final");
    return [atomic.map((node) => node.path.join(".")).sort(), trace, snapshot.status];
  };
  actor.start();
  const steps = [seen()];
  for (const event of events) {
    trace = [];
    actor.send({ type: event });
    steps.push(seen());
  }
  return steps;
});
console.log(JSON.stringify(results));

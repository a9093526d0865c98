"""What the lab claims, how it predicts and how it measures: the text of every experiment, without what measures it.

Listing the experiments needs no torch; running one imports its module.
"""

from __future__ import annotations

from plait.lab.experiment import Experiment, Outcome, Say, Size


def _data_parallel(size: Size, say: Say) -> Outcome:
    from plait.lab.data_parallel import measure

    return measure(size, say)


def _tensor_parallel(size: Size, say: Say) -> Outcome:
    from plait.lab.tensor_parallel import measure

    return measure(size, say)


def _pipeline(size: Size, say: Say) -> Outcome:
    from plait.lab.pipeline import measure

    return measure(size, say)


def _layer_wise(size: Size, say: Say) -> Outcome:
    from plait.lab.layer_wise import measure

    return measure(size, say)


def _many_users(size: Size, say: Say) -> Outcome:
    from plait.lab.many_users import measure

    return measure(size, say)


def _braid(size: Size, say: Say) -> Outcome:
    from plait.lab.braid import measure

    return measure(size, say)


def _quiz(size: Size, say: Say) -> Outcome:
    from plait.lab.quiz import measure

    return measure(size, say)


DATA_PARALLEL = Experiment(
    "data-parallel",
    "Data parallelism: it talks only at the end, then pays",
    "Replicas compute a whole step without a word; then all their gradients must be summed, and if nothing else is "
    "done meanwhile, everyone waits for that.",
    "Each of n replicas sends 2·(n − 1) ÷ n of its gradients, 4 bytes a parameter, once a step, whatever the batch; "
    "that takes bytes ÷ bandwidth and a latency. Upper bound of the step: computing and the sum, one after the other. "
    "Lower bound: the longer of the two: with the gradients in b buckets all but the last can be summed while the last "
    "backward computes the next; at least 1 ÷ b of the sum stays behind it.",
    "A small model is trained by two processes over an emulated link of 500 Mb/s, once with all gradients in one "
    "bucket and once in four; the fastest of seven steps counts. Gradients must be sent to the byte as the formula "
    "says, and nothing before the last backward. The step is simulated from what forward, backward, norm and update "
    "took in it, so that what is compared is the talking; it may be 25 % off, and the sum 30 %.",
    _data_parallel,
)

TENSOR_PARALLEL = Experiment(
    "tensor-parallel",
    "Tensor parallelism: it talks in every layer",
    "Two machines that share every layer are faster than one, as long as they can talk fast; over an ordinary network "
    "they are slower than one of them alone.",
    "A token takes C + E · (L + S ÷ B): C to compute, E exchanges (two a layer, one for the embedding, one for the "
    "token), each of which waits for the latency L and for its S bytes at bandwidth B. Lower bound: half of what one "
    "machine computes, where every layer divides evenly and links are free (the demo's nine heads are dealt five and "
    "four). Upper bound: none; it grows with the "
    "latency, and two machines are slower than one as soon as E · (L + S ÷ B) is longer than what the second one "
    "saves.",
    "The demo model in float32, one core a rank: one process, two ranks over shared memory, over 10 Gb/s, 1 Gb/s, "
    "100 Mb/s and Wi-Fi, and a pipeline of two over the same links, taking turns, three answers of 16 tokens each; the "
    "median counts. Bytes must be the predicted ones. Tokens/s may lie 25 % from what the ranks computed in the same "
    "answers and the link adds, or from what shared memory takes in the same minute and the link adds. On a quiet host "
    "the gain over shared memory may lie 40 % from that of the plan, since both ranks need a core at the same time.",
    _tensor_parallel,
)

PIPELINE = Experiment(
    "pipeline",
    "Pipeline parallelism: the bubble",
    "A pipeline of p stages idles while it fills and while it drains; more micro-batches make that a smaller share, "
    "and a better schedule fills it with work.",
    "With p stages, m micro-batches, v stages on each position and free links, GPipe and 1F1B (v = 1) and interleaved "
    "idle (p − 1) ÷ (v·m + p − 1) of the time. Zero-bubble schedules split the backward into I and W: beside "
    "m·(F + I + W) of work only (p − 1)·(F + I − W) of ZB-H1 is left, (p − 1)·F of ZB-H2 and, where F = I = W, "
    "(p − 1)·I of ZB-V, whose two stages on a position have half of each. Lower bound of all: the last position "
    "cannot begin before one forward has gone through the others, (p − 1) ÷ (3·v·m + p − 1) where F = I = W. Upper "
    "bound: layer-wise, one micro-batch at a time, 1 − 1 ÷ p.",
    "GPipe, 1F1B, interleaved, ZB-H1, ZB-H2 and ZB-V with 2 and 4 stages and 2, 4, 8 and 16 micro-batches: a thread a "
    "stage, which waits 30 ms for each F, I and W, driven by the executor that trains; the bubble is read off the "
    "measured timeline of a step that nothing disturbed: two steps that take the same within 1 % are taken for that. "
    "It may lie 2.5 points from the prediction: what waking a thread and handing on a message take beside such waits. "
    "Two processes also train a small model, with 2 and 8 micro-batches; 6 points are allowed there, since passes do "
    "not all take the same time.",
    _pipeline,
)

LAYER_WISE = Experiment(
    "layer-wise",
    "Layer-wise: one machine works, the others wait",
    "With one user, N machines in a row are not faster than one: one works while N − 1 wait. But they need little of "
    "their links, and together they hold a model that none of them holds alone.",
    "A token takes ΣCᵢ + (N − 1) · (L + A ÷ B) + (L + 8 bytes ÷ B): what the stages compute, a hop with the "
    "activations A between any two, and one with the token back. Idle are 1 − ΣCᵢ ÷ (N · token) of the machines' "
    "time. Lower bound: 1 − 1 ÷ N, with free links. Upper bound: 1, with links that take for "
    "ever. Over a slower link a token takes N hops longer, where tensor parallelism takes two a layer.",
    "The demo model in float32, one core a rank: one process and pipelines of 2 and 3 stages, taking turns, and then a "
    "pipeline and a tensor group of two, over shared memory and over 100 Mb/s, taking turns; three answers of 24 "
    "tokens each, the median counts. A token may lie 10 % from the sum of what its stages computed in the same answers "
    "and the hops, 40 % from one process in the same minute; idle shares may lie 7 points from the simulator's, and "
    "what is kept over 100 Mb/s 25 % from the prediction.",
    _layer_wise,
)

MANY_USERS = Experiment(
    "many-users",
    "Many users: they fill the pipeline",
    "One user cannot fill a pipeline, but several can: cut into micro-batches they keep all machines busy. It is not "
    "free: every micro-batch reads the weights again.",
    "With p equal stages, m micro-batches that take a stage C each, and free links, a token takes every user p · C "
    "where m is up to p, and m · C beyond; 1 − min(m, p) ÷ p of the time is idle. Lower bound 0, from m = p on; upper "
    "bound 1 − 1 ÷ p, layer-wise. A token of u users reads m · W ÷ u bytes of weights W: lower bound W ÷ u, "
    "layer-wise; upper bound W, as for one user alone. Where reading them is all that takes time, C is the same for "
    "one user and for many: then m up to p costs nothing, and beyond it only time.",
    "The demo model in float32 on two stages, one core each, layer-wise and pipelined in two micro-batches, with 1, 2, "
    "4 and 8 users, taking turns; three answers of 16 tokens for each user, the median of rounds in which all decode. "
    "Weights read are counted: forwards that ran times the weights that their stage has loaded; they must be the "
    "predicted ones. A micro-batch is predicted to take a stage what as many users took it layer-wise in the same "
    "minute; tokens/s may lie 35 % from what the simulator makes of that, and idle shares 12 points, since the stages "
    "compute at the same time and share this host's memory.",
    _many_users,
)

BRAID = Experiment(
    "braid",
    "The braid: which axis on which link",
    "What talks most belongs on the fastest links: tensor parallelism inside a host, and pipeline or data parallelism "
    "between hosts.",
    "With p stages and m micro-batches, each replica sends one way over the link between the hosts: tp about "
    "m · (4 · layers + p + 1) · tokens · hidden numbers (sums in every layer, forward and backward), pp "
    "m · tokens · hidden, and dp its parameters, once. The step is simulated, with the wire divided by those that use "
    "it at the same time. Lower bound: (m + p − 1)·(F + B), or the bytes one way ÷ the bandwidth where that is more; "
    "the latter is also the prediction where it is more than what was simulated. Upper bound: both, one after the "
    "other, and a latency for each message.",
    "Two hosts of four ranks each, dp 2 × pp 2 × tp 2 in all six orders of the axes, the outermost between the hosts. "
    "Eight threads run a 1F1B step of 4 micro-batches with the executor that trains; the fastest of two steps or more "
    "counts. Bytes must be those of the rules, to the byte. A step may differ by 25 %: eight threads take turns at "
    "their messages, and where many share the wire the simulator does not know whose goes first.",
    _braid,
)

QUIZ = Experiment(
    "quiz",
    "The quiz: two machines, one slow link, a model that fits neither",
    "Two machines, 100 Mb/s and 2 ms between them, and a model that is too large for either. What will you see? "
    "(a) It cannot run. (b) Two machines, so it runs twice as fast as on one. (c) Let both share every layer: then "
    "neither ever waits. (d) Cut it by layers: it runs about as fast as on one machine that could hold it, and each "
    "machine waits while the other works.",
    "By layers a token takes C₁ + C₂ + 2 · L and a few kB ÷ B, and a machine idles what the other one computes: lower "
    "bound C, what one machine that held it all would take; upper bound C + 2 · (L + S ÷ B). Sharing every layer it "
    "takes C ÷ 2 + E · (L + S ÷ B) with E = 2 exchanges a layer: faster only where E · (L + S ÷ B) is below C ÷ 2. So "
    "(d), unless the link is fast.",
    "The planner is given two machines with a core of this one each, as the probe measures it, 100 Mb/s with 2 ms "
    "between them, and less memory than the demo model needs in float32, but more than a half of it does. Its best "
    "pipeline and its best tensor split are then run over the emulated link, taking turns with the same split over "
    "shared memory, three answers of 16 tokens each; so is one process. The planner's choice must be the fastest "
    "measured, and its bytes those that are sent. Tokens/s may lie 25 % from what shared memory takes in the same "
    "minute and the planner's link adds, idle shares 10 points, and the planner's own tokens/s of its choice 50 %.",
    _quiz,
)

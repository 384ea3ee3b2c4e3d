// The keys of a run file, one line each.
#include "src/plan/config/fields.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <sstream>
#include <utility>

#include <toml++/toml.h>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/strategy.h"
#include "src/plan/base/rank_limits.h"
#include "src/plan/base/text_match.h"
#include "src/plan/search/layers/layer_planner.h"
#include "src/plan/strategy/mlp_names.h"

namespace paradyse {

namespace {

// More would be a slip of the pen: which documents each step has is in memory from the start.
constexpr double kMostSteps = 1e8;
constexpr double kMostEpochs = 1e6;
constexpr double kMostTokens = 1e9;  // of a step
constexpr double kMostLoraRank = 1e6;

std::vector<std::string> with_auto(std::vector<std::string> names) {
  names.insert(names.begin(), "auto");
  return names;
}

std::vector<std::string> names_of_attention() {
  std::vector<std::string> names;
  for (const Strategy& strategy : strategies("attention")) {
    names.push_back(strategy.name);
  }
  return names;
}

template <typename Rows>
std::vector<std::string> names_of(const Rows& table) {
  std::vector<std::string> names;
  for (const auto& row : table) {
    names.emplace_back(row.name);
  }
  return names;
}

template <typename Rows>
std::vector<Renamed> renamed_of(const Rows& table) {
  std::vector<Renamed> renamed;
  for (const auto& row : table) {
    if (!std::string_view(row.old_name).empty()) {
      renamed.push_back({.now = row.name, .old = row.old_name});
    }
  }
  return renamed;
}

// " name: what it is;" of each.
template <typename Rows>
std::string summaries_of(const Rows& table) {
  std::string text;
  for (const auto& row : table) {
    text.append(text.empty() ? " " : "; ").append(row.name).append(": ").append(row.summary);
  }
  return text + ".";
}

std::vector<std::string> names_of_levels() {
  std::vector<std::string> names = recompute_names();
  names.insert(names.begin(), "auto");
  return names;
}

std::string shortest(double value) {
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  return {digits.data(), end};
}

}  // namespace

std::vector<Field> fields(RunConfig& c) {
  const Range from_zero{.low = 0};
  const Range from_one{.low = 1};
  const Range share{.low = 0, .high = 1};
  const Range own_or_share{.low = -1, .high = 1, .high_open = true};
  const Range beta{.low = 0, .high = 1, .high_open = true};
  std::vector<Field> all = {
      {.key = "model.path",
       .help =
           "The model: a Hugging Face folder, or a TOML model file with the keys of a config.json. "
           "A TOML model gets random weights. Relative paths start at the working directory.",
       .value = &c.model.path},
      {.key = "model.random_weights",
       .help = "Use random weights for a Hugging Face folder as well. Otherwise a folder whose "
               "weights cannot be read is an error.",
       .value = &c.model.random_weights,
       .fixed = true},
      {.key = "model.seed",
       .help = "Seed of random weights and of dropout.",
       .value = &c.model.seed,
       .range = from_zero,
       .fixed = true},
      {.key = "model.dropout",
       .help = "Residual and embedding dropout. A negative value takes the rate from the model's "
               "configuration.",
       .value = &c.model.dropout,
       .range = own_or_share,
       .known_by = kDocuments,
       .fixed = true},
      {.key = "model.attention_dropout",
       .help = "Dropout of attention probabilities. A negative value takes the rate from the "
               "model's configuration.",
       .value = &c.model.attention_dropout,
       .range = own_or_share,
       .known_by = kDocuments,
       .fixed = true},
      {.key = "lora.r",
       .help = "Rank of LoRA adapters. The model's weights are frozen, and adapters are trained. "
               "0: no adapters, or those of lora.path.",
       .value = &c.lora.r,
       .range = {.low = 0, .high = kMostLoraRank},
       .known_by = kDocuments,
       .fixed = true},
      {.key = "lora.alpha",
       .help = "LoRA scaling: an adapter's product is multiplied by alpha / r.",
       .value = &c.lora.alpha,
       .known_by = kDocuments,
       .fixed = true},
      {.key = "lora.target_modules",
       .help = "Names of the modules that get an adapter, for example q_proj and v_proj. "
               "all-linear: every linear layer except the head.",
       .value = &c.lora.target_modules,
       .known_by = kDocuments,
       .fixed = true},
      {.key = "lora.use_rslora",
       .help = "Rank-stabilized LoRA: multiply by alpha / sqrt(r) instead of alpha / r.",
       .value = &c.lora.use_rslora,
       .known_by = kDocuments,
       .fixed = true},
      {.key = "lora.bias",
       .help = "Biases of the model that are trained beside the adapters. lora_only: those of the "
               "modules that have an adapter.",
       .value = &c.lora.bias,
       .accepted = {"none", "all", "lora_only"},
       .known_by = kDocuments,
       .fixed = true},
      {.key = "lora.dropout",
       .help = "LoRA dropout, which is not implemented: only 0 can be trained. A negative value "
               "takes the rate from lora.path.",
       .value = &c.lora.dropout,
       .range = own_or_share,
       .known_by = kDocuments,
       .fixed = true},
      {.key = "lora.path",
       .help = "PEFT folder (adapter_config.json and adapter_model.safetensors) whose adapters are "
               "trained further, beside the weights of model.path. lora.r and the other "
               "settings are read from it.",
       .value = &c.lora.path,
       .known_by = kDocuments},
      {.key = "data.path",
       .help = "Documents to train on: folders, files (JSONL or text) and glob patterns. See "
               "docs/reference/data.md.",
       .value = &c.data.path},
      {.key = "data.weights",
       .help = "Blend: a number for each entry of data.path, the share of its tokens relative to "
               "the others. Empty: every document of all entries is drawn once an epoch.",
       .value = &c.data.weights,
       .range = {.low = 0, .low_open = true},
       .known_by = kDocuments,
       .fixed = true},
      {.key = "data.eval_path",
       .help = "Held-out documents, given like data.path. Their loss is measured at the end, and "
               "during training with train.eval_every. Empty: none.",
       .value = &c.data.eval_path},
      {.key = "data.held_out",
       .help = "Documents of data.path to hold out, instead of data.eval_path: below 1 a share of "
               "them, from 1 on a number. They are chosen by data.seed and never trained on. 0: "
               "none.",
       .value = &c.data.held_out,
       .range = from_zero,
       .fixed = true},
      {.key = "data.min_tokens",
       .help = "Shorter documents are left out; the run says how many.",
       .value = &c.data.min_tokens,
       .range = from_zero,
       .known_by = kDocuments,
       .fixed = true},
      {.key = "data.max_tokens",
       .help = "Longest document in tokens; data.too_long says what happens to longer ones. 0: no "
               "limit, or, for a model with learned positions, their number.",
       .value = &c.data.max_tokens,
       .range = from_zero,
       .known_by = kDocuments,
       .fixed = true},
      {.key = "data.too_long",
       .help = "What happens to a document longer than data.max_tokens. cut: its end is cut off. "
               "skip: it is left out. refuse: the run does not start. split: it becomes several "
               "documents of at most that length.",
       .value = &c.data.too_long,
       .accepted = {"cut", "skip", "refuse", "split"},
       .known_by = kDocuments,
       .fixed = true},
      {.key = "data.bytes",
       .help = "Use the bytes of text as tokens even if the model has a tokenizer. Otherwise text "
               "for such a model is an error.",
       .value = &c.data.bytes,
       .known_by = kDocuments,
       .fixed = true},
      {.key = "data.protein",
       .help = "Read alignments as proteins even if nine letters in ten are A, C, G, T, U or N. "
               "Otherwise such an alignment is refused as one of nucleotides.",
       .value = &c.data.protein,
       .known_by = "evoformer",
       .fixed = true},
      {.key = "data.masked_residues",
       .help = "Residues of alignments to leave out; the others keep their positions. "
               "marked: columns with an m in the line #=GC MM of a Stockholm file. unknown: those, "
               "and where the first sequence has X, J or O. none: no residue.",
       .value = &c.data.masked_residues,
       .accepted = {"marked", "unknown", "none"},
       .known_by = "evoformer",
       .fixed = true},
      {.key = "data.masked_letters",
       .help =
           "Letters of alignments that do not count, for a model with msa_mask. marked: letters "
           "with an m in the line #=GR NAME MM of a Stockholm file. ends: those, and gaps before "
           "the first letter of a sequence and after its last. none: no letter.",
       .value = &c.data.masked_letters,
       .accepted = {"none", "marked", "ends"},
       .known_by = "evoformer",
       .fixed = true},
      {.key = "data.sequences",
       .help =
           "Number of sequences of an alignment in the MSA: the first one, and others drawn for "
           "each sample. 0: all, or 512 for a model with no_extra_blocks.",
       .value = &c.data.sequences,
       .range = from_zero,
       .known_by = "evoformer",
       .fixed = true},
      {.key = "data.extra_sequences",
       .help =
           "For a model with no_extra_blocks: maximum number of sequences of an alignment, beyond "
           "its MSA, for the extra-MSA stack. 0: 1024.",
       .value = &c.data.extra_sequences,
       .range = from_zero,
       .known_by = "evoformer",
       .fixed = true},
      {.key = "data.end_id",
       .help = "Token added after each text. auto: the tokenizer's end-of-text token, or none for "
               "a model without a tokenizer.",
       .value = &c.data.end_id,
       .id = true,
       .known_by = kDocuments,
       .fixed = true},
      {.key = "data.order",
       .help = "Order of documents. curriculum: short documents first (see data.curriculum_share).",
       .value = &c.data.order,
       .accepted = {"shuffled", "sorted", "curriculum"},
       .fixed = true},
      {.key = "data.curriculum_share",
       .help = "Share of the run's documents that are ordered by length under data.order = "
               "\"curriculum\".",
       .value = &c.data.curriculum_share,
       .range = share,
       .fixed = true},
      {.key = "data.seed",
       .help = "Seed of the order of documents.",
       .value = &c.data.seed,
       .range = from_zero,
       .fixed = true},
      {.key = "parallel.ranks",
       .help = "Number of ranks. Under torchrun, srun, mpirun or paradyse launch it is the number "
               "of processes.",
       .value = &c.parallel.ranks,
       .range = {.low = 1, .high = kMostRanks}},
      {.key = "parallel.memory_per_rank",
       .help = "Enforced memory budget of a rank. Plans must fit it. A step that exceeds it is "
               "retried with a plan that needs less; with nccl the run ends. 0: no limit on CPUs, "
               "the memory that is free at the start on a GPU.",
       .value = &c.parallel.memory_per_rank,
       .amount = true},
      {.key = "parallel.weight_domain",
       .help = "Ranks that share one copy of the weights, gradients and optimizer moments. world: "
               "all ranks (FSDP, ZeRO-3). node: the ranks of each node, and nodes hold copies "
               "(HSDP); weights are then gathered once a step. auto: the one with the shorter "
               "predicted time if there are several nodes, else world.",
       .value = &c.parallel.weight_domain,
       .accepted = {"auto", "world", "node"}},
      {.key = "parallel.gather_weights",
       .help = "How often sharded weights are all-gathered and their gradients reduce-scattered. "
               "micro-batch: in each micro-batch, layer by layer. step: once a step, and each rank "
               "holds all weights and gradients while it lasts (FSDP2: "
               "set_reshard_after_backward(False)). auto: the one with the shorter predicted time; "
               "without parallel.memory_per_rank it is micro-batch, since all weights may not fit "
               "a rank.",
       .value = &c.parallel.gather_weights,
       .accepted = {"auto", "micro-batch", "step"}},
      {.key = "parallel.attention",
       .help = "Attention strategy. auto: chosen by predicted cost for every batch. Any other "
               "value is used for all documents.",
       .value = &c.parallel.attention,
       .accepted = with_auto(names_of_attention()),
       .known_by = kDocuments},
      {.key = "parallel.mlp",
       .help = "Weight mode of the MLP. auto: chosen by predicted cost, or that of "
               "parallel.attention if it is set. tensor-parallel: each rank holds a part of the "
               "weights. zero3: weights are all-gathered (ZeRO-3, FSDP). streamed: weights go from "
               "rank to rank in a ring. The name of an attention strategy stands for its weight "
               "mode.",
       .value = &c.parallel.mlp,
       .accepted = with_auto(mlp_names()),
       .renamed = weight_modes(),
       .known_by = kDocuments},
      {.key = "parallel.recompute",
       .help = "What is recomputed in the backward pass (activation checkpointing). auto: as "
               "little as the memory budget allows. light: norms and activation functions; "
               "attention-output: all but the attention core; full: each part by itself; layer: "
               "whole layers, layer+LEVEL with that level inside them.",
       .value = &c.parallel.recompute,
       .accepted = names_of_levels()},
      {.key = "parallel.layer_planner",
       .help = std::string("Layer planner, for documents that are split over all ranks.") +
               summaries_of(layer_planners()),
       .value = &c.parallel.layer_planner,
       .accepted = names_of(layer_planners()),
       .old_key = "parallel.planner",
       .renamed = renamed_of(layer_planners()),
       .known_by = kDocuments},
      {.key = "parallel.batch_planner",
       .help = std::string("Batch planner: decides how many ranks each document gets.") +
               summaries_of(batch_planners()),
       .value = &c.parallel.batch_planner,
       .accepted = names_of(batch_planners()),
       .renamed = renamed_of(batch_planners())},
      {.key = "parallel.planning_seconds",
       .help = "Time limit for planning one step, in seconds. Plans are requested two steps ahead. "
               "If a plan is late, the step runs with a simpler plan. No limit if "
               "costs.correct is false.",
       .value = &c.parallel.planning_seconds,
       .range = {.low = 0, .high = 1e6}},
      {.key = "parallel.offload",
       .help = "Allow plans to keep saved activations in host memory until the backward pass.",
       .value = &c.parallel.offload},
      {.key = "parallel.timeout_seconds",
       .help =
           "Longest wait for another rank, in seconds, also at the start. Then the run ends with "
           "an error that names what it waited for.",
       .value = &c.parallel.timeout_seconds,
       .range = {.low = 0, .high = 1e6, .low_open = true},
       .old_key = "parallel.deadline_seconds"},
      {.key = "parallel.backend",
       .help = "How ranks communicate. local: ranks are threads of one process. gloo, nccl: ranks "
               "are processes. auto: processes if a launcher started them, else local.",
       .value = &c.parallel.backend,
       .accepted = {"auto", "local", "gloo", "nccl"}},
      {.key = "parallel.device",
       .help = "Device that computes.",
       .value = &c.parallel.device,
       .accepted = {"cpu", "cuda"}},
      {.key = "parallel.rendezvous",
       .help = "HOST[:PORT] where the processes meet. Empty: the launcher's.",
       .value = &c.parallel.rendezvous},
      {.key = "parallel.interface",
       .help = "Network interface of gloo and nccl. Empty: the one that reaches the rendezvous.",
       .value = &c.parallel.interface},
      {.key = "costs.file",
       .help = "Cost model used by the planners: a file made by paradyse fit. auto: the file in "
               "output.folder/costs, if it exists. measure: the same file, measured first if it is "
               "missing. none: a closed form from a few speeds measured at the start (fixed speeds "
               "if costs.correct is false).",
       .value = &c.costs.file},
      {.key = "costs.correct",
       .help = "Correct fitted costs by the measured time of steps. false: measured time never "
               "changes a plan, so on CPUs identical runs are bit-identical.",
       .value = &c.costs.correct},
      {.key = "costs.profile_seconds",
       .help = "Seconds that profiling may take, with costs.file = \"measure\" and in paradyse "
               "profile.",
       .value = &c.costs.profile_seconds,
       .range = {.low = 0, .high = 1e6, .low_open = true}},
      {.key = "train.steps",
       .help = "Number of optimizer steps. 0: train.epochs says how many.",
       .value = &c.train.steps,
       .range = {.low = 0, .high = kMostSteps}},
      {.key = "train.epochs",
       .help =
           "Number of epochs, instead of train.steps: an epoch draws as many documents as there "
           "are. The last step may have fewer tokens. 0: train.steps counts.",
       .value = &c.train.epochs,
       .range = {.low = 0, .high = kMostEpochs}},
      {.key = "train.eval_every",
       .help = "Measure the held-out loss every N steps. 0: only at the end.",
       .value = &c.train.eval_every,
       .range = from_zero},
      {.key = "train.tokens_per_step",
       .help = "Documents are added to a step until it has this many tokens.",
       .value = &c.train.tokens_per_step,
       .range = {.low = 1, .high = kMostTokens},
       .fixed = true},
      {.key = "train.dtype",
       .help = "Data type of activations and gathered weights. With bfloat16 and float16, master "
               "weights are float32.",
       .value = &c.train.dtype,
       .accepted = dtype_names(),
       .fixed = true},
      {.key = "train.metrics_groups",
       .help = "Write predicted and measured time of each group of ranks to metrics.jsonl.",
       .value = &c.train.metrics_groups},
      {.key = "train.compare",
       .help = "Every N steps, also run the batch with the best static plan (one strategy for "
               "all documents; for video and protein models, one group size for all samples), "
               "without an update, and report how much longer that takes. 0: off.",
       .value = &c.train.compare,
       .range = from_zero},
      {.key = "train.on_bad_step",
       .help = "What follows a step whose loss or gradient norm is NaN or infinite. stop: the run "
               "ends, with the weights from before the step. skip: the step makes no update. "
               "rollback: training resumes from the newest checkpoint and skips the step.",
       .value = &c.train.on_bad_step,
       .accepted = {"stop", "skip", "rollback"}},
      {.key = "train.loss_spike",
       .help =
           "A step is also bad (train.on_bad_step) if its loss is more than this many times the "
           "median of the last 32 losses. 0: off; above 3 times, a line reports it.",
       .value = &c.train.loss_spike,
       .range = {.low = 0, .high = 1e6}},
      {.key = "optimizer.lr",
       .help = "Peak learning rate of AdamW.",
       .value = &c.optimizer.lr,
       .range = from_zero},
      {.key = "optimizer.beta1",
       .help = "AdamW's beta1.",
       .value = &c.optimizer.beta1,
       .range = beta},
      {.key = "optimizer.beta2",
       .help = "AdamW's beta2.",
       .value = &c.optimizer.beta2,
       .range = beta},
      {.key = "optimizer.eps",
       .help = "AdamW's epsilon.",
       .value = &c.optimizer.eps,
       .range = {.low = 0, .low_open = true}},
      {.key = "optimizer.weight_decay",
       .help = "Decoupled weight decay, applied to matrices only.",
       .value = &c.optimizer.weight_decay,
       .range = from_zero},
      {.key = "optimizer.max_grad_norm",
       .help = "Gradients are clipped to this norm. 0: not clipped.",
       .value = &c.optimizer.max_grad_norm,
       .range = from_zero,
       .old_key = "optimizer.clip_norm"},
      {.key = "optimizer.warmup_steps",
       .help = "Steps of linear warmup.",
       .value = &c.optimizer.warmup_steps,
       .range = from_zero},
      {.key = "optimizer.min_lr_ratio",
       .help = "Cosine decay ends at this share of optimizer.lr.",
       .value = &c.optimizer.min_lr_ratio,
       .range = share},
      {.key = "optimizer.offload",
       .help = "Keep the optimizer's moments, and the float32 master weights, in host memory.",
       .value = &c.optimizer.offload},
      {.key = "optimizer.path",
       .help = "Folder with the moments of AdamW and its number of steps, which a new run begins "
               "with. python -m paradyse.torch.dcp from --optimizer writes it. Empty: moments "
               "begin as zeros.",
       .value = &c.optimizer.path,
       .fixed = true},
      {.key = "output.folder",
       .help = "Folder in which each run makes a folder of its own.",
       .value = &c.output.folder,
       .fixed = true},
      {.key = "output.name",
       .help = "Name of the run's folder. Empty: date and time.",
       .value = &c.output.name,
       .fixed = true},
      {.key = "output.trace",
       .help = "Write trace.json, for ui.perfetto.dev.",
       .value = &c.output.trace},
      {.key = "output.trace_limit",
       .help = "Size limit of trace.json, as in \"5MB\". Later steps are left out, and the run "
               "reports that. 0: no limit.",
       .value = &c.output.trace_limit,
       .amount = true},
      {.key = "output.tensorboard",
       .help = "Write TensorBoard event files to the run's folder.",
       .value = &c.output.tensorboard},
      {.key = "output.model",
       .help = "Save the trained model as a Hugging Face folder at the end.",
       .value = &c.output.model},
      {.key = "output.dtype",
       .help = "Data type of the weights in the saved model. If it differs from train.dtype, "
               "weights are rounded from the float32 master weights. auto: train.dtype.",
       .value = &c.output.dtype,
       .accepted = with_auto(dtype_names())},
      {.key = "output.clips",
       .help = "Video models: number of clips generated at the end, as pictures.",
       .value = &c.output.clips,
       .range = from_zero},
      {.key = "output.sampling_steps",
       .help = "Video models: denoising steps for each clip.",
       .value = &c.output.sampling_steps,
       .range = from_one},
      {.key = "checkpoint.keep",
       .help = "Number of newest checkpoints to keep. 0: no checkpoint is written, not even at the "
               "end.",
       .value = &c.checkpoint.keep,
       .range = from_zero},
      {.key = "checkpoint.keep_every",
       .help = "Also keep one checkpoint every N steps: the first at or after each "
               "multiple. 0: off.",
       .value = &c.checkpoint.keep_every,
       .range = from_zero},
      {.key = "checkpoint.every",
       .help = "Write a checkpoint every N steps. 0: off.",
       .value = &c.checkpoint.every,
       .range = from_zero},
      {.key = "checkpoint.minutes",
       .help = "Write a checkpoint every N minutes. 0: off.",
       .value = &c.checkpoint.minutes,
       .range = {.low = 0, .high = 1e6}},
      {.key = "checkpoint.failures",
       .help = "The run ends if this many checkpoints in a row cannot be written. After fewer "
               "failures training continues, and the next checkpoint is tried, also if there is no "
               "complete checkpoint yet. The last checkpoint of a run is tried three times.",
       .value = &c.checkpoint.failures,
       .range = from_one},
      {.key = "checkpoint.async_save",
       .help = "Copy weights and optimizer state in memory and write the copy while training "
               "continues. The copy takes 12 bytes per parameter (24 for float64), in the memory "
               "where the optimizer's state is; beside a GPU, in host memory.",
       .value = &c.checkpoint.async_save},
  };
  // Beside the strategies that have them.
  auto place = std::ranges::find(all, "parallel.offload", &Field::key);
  for (const Option& option : all_options()) {
    place = all.insert(
        place + 1,
        {.key = std::string("parallel.") + option.name,
         .help = std::string("Strategy option; 0: its default, or the planner's choice. ") +
                 option.meaning + ".",
         .value = &c.parallel.options[option.name],
         .range = from_zero,
         .known_by = kDocuments});
  }
  return all;
}

std::string section_of(const std::string& key) { return key.substr(0, key.find('.')); }

std::vector<std::string> keys_known_by(const std::string& models) {
  RunConfig defaults;
  std::vector<std::string> keys;
  for (const Field& field : fields(defaults)) {
    if (field.known_by == models) {
      keys.push_back(field.key);
    }
  }
  return keys;
}

std::vector<std::pair<std::string, std::string>> keys_of_others(
    const RunConfig& config, const std::string& models) {
  RunConfig said = config;
  RunConfig defaults;
  const std::vector<Field> now = fields(said);
  const std::vector<Field> plain = fields(defaults);
  std::vector<std::pair<std::string, std::string>> keys;
  for (std::size_t i = 0; i < now.size(); ++i) {
    const bool others = !now[i].known_by.empty() && now[i].known_by != models;
    if (others && toml_text(now[i]) != toml_text(plain[i])) {
      keys.emplace_back(now[i].key, now[i].known_by);
    }
  }
  return keys;
}

std::string changeable_keys() {
  struct Section {
    std::vector<std::string> free;
    std::vector<std::string> fixed;
  };
  RunConfig defaults;
  std::vector<std::pair<std::string, Section>> sections;
  for (const Field& field : fields(defaults)) {
    const std::string name = section_of(field.key);
    if (sections.empty() || sections.back().first != name) {
      sections.emplace_back(name, Section{});
    }
    Section& section = sections.back().second;
    (field.fixed ? section.fixed : section.free).push_back(field.key);
  }
  std::vector<std::string> texts;
  for (auto& [name, section] : sections) {
    if (section.free.size() < section.fixed.size()) {
      std::ranges::move(section.free, std::back_inserter(texts));
      continue;
    }
    std::vector<std::string> kept;
    kept.reserve(section.fixed.size());
    for (const std::string& key : section.fixed) {
      kept.push_back(key.substr(name.size() + 1));
    }
    texts.push_back(kept.empty() ? name : name + " (but not " + joined(kept, ", ") + ")");
  }
  return joined(texts, ", ");
}

std::string models_text(const std::string& known_by) {
  return known_by.empty()          ? ""
         : known_by == kDocuments  ? "language models"
         : known_by == "evoformer" ? "protein models"
                                   : "models of type " + known_by;
}

std::string toml_text(const std::string& value) {
  std::ostringstream text;
  text << toml::value<std::string>(value);
  return text.str();
}

// One string stands for a list of it, none for an empty one.
std::string toml_text(const std::vector<std::string>& values) {
  if (values.size() < 2) {
    return toml_text(values.empty() ? std::string() : values.front());
  }
  std::string text;
  for (const std::string& value : values) {
    text += (text.empty() ? "[" : ", ") + toml_text(value);
  }
  return text + "]";
}

std::string toml_text(const std::vector<double>& values) {
  return "[" + joined(values, ", ", [](double value) { return toml_text(value); }) + "]";
}

std::string toml_text(Dtype value) { return toml_text(std::string(to_string(value))); }

std::string toml_text(double value) {
  std::string text = shortest(value);
  if (text.find_first_of(".e") == std::string::npos) {
    text += ".0";  // or TOML takes it for an integer
  }
  return text;
}

std::string toml_text(std::int64_t value) { return std::to_string(value); }
std::string toml_text(std::uint64_t value) { return std::to_string(value); }
std::string toml_text(bool value) { return value ? "true" : "false"; }

std::string toml_text(const Field& field) {
  return std::visit([](const auto* value) { return toml_text(*value); }, field.value);
}

namespace {

std::string range_text(const Range& range) {
  std::string text;
  if (std::isfinite(range.low)) {
    text += (range.low_open ? " above " : " from ") + shortest(range.low);
  }
  if (std::isfinite(range.high)) {
    text += (range.high_open ? " and below " : " to ") + shortest(range.high);
  }
  return text;
}

}  // namespace

std::string accepted_text(const Field& field) {
  if (!field.accepted.empty()) {
    return "one of " + joined(field.accepted, ", ");
  }
  if (field.amount) {
    return "an amount of memory, as in \"512MiB\", or 0";
  }
  if (field.id) {
    return "auto, none, or an id from 0";
  }
  if (std::holds_alternative<std::string*>(field.value)) {
    return "a string";
  }
  if (std::holds_alternative<std::vector<std::string>*>(field.value)) {
    return "a string, or a list of strings";
  }
  if (std::holds_alternative<std::vector<double>*>(field.value)) {
    return "a list of numbers" + range_text(field.range);
  }
  if (std::holds_alternative<bool*>(field.value)) {
    return "true or false";
  }
  if (std::holds_alternative<double*>(field.value)) {
    return "a number" + range_text(field.range);
  }
  return "a whole number" + range_text(field.range);
}

}  // namespace paradyse

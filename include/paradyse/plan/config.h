// The configuration of a run: TOML file, `--set a.b=c` over it, defaults below; with the origin of
// every value.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "paradyse/plan/dtype.h"

namespace paradyse {

struct RunConfig {
  struct Model {
    std::string path;  // Hugging Face folder (relative paths: from the working folder), or TOML
                       // model file: random weights
    bool random_weights = false;    // even of a folder, which else has to have weights
    std::uint64_t seed = 1;         // of random weights, and of dropout
    double dropout = -1;            // residual and embedding dropout; negative: the model's own
    double attention_dropout = -1;  // negative: the model's own
  } model;
  struct Lora {  // adapters beside frozen weights (lora.h), by the names of PEFT's LoraConfig
    std::int64_t r = 0;  // 0: none, all weights are trained; or those of `path`
    double alpha = 8;
    std::vector<std::string> target_modules = {"all-linear"};
    bool use_rslora = false;
    std::string bias = "none";  // none, all, lora_only
    double dropout = -1;        // negative: that of `path`; only 0 can be trained
    std::string path;           // a PEFT folder to begin from; "": they begin anew
  } lora;
  struct Data {
    // Folders, files (JSONL or text) and patterns of them; in TOML a string or a list.
    std::vector<std::string> path = {};
    std::vector<double> weights = {};         // of each path, in tokens; {}: all documents alike
    std::vector<std::string> eval_path = {};  // {}: none
    // Taken from data.path: below 1 a share of its documents, else so many; 0: none.
    double held_out = 0;
    std::int64_t min_tokens = 2;
    // 0: no limit, but of a model with learned positions as many as it has.
    std::int64_t max_tokens = 0;
    std::string too_long = "cut";  // cut, skip, refuse, split
    bool bytes = false;            // of text are ids, though the model has a tokenizer
    bool protein = false;          // alignments are, though all letters may be nucleotides'
    std::string masked_residues = "marked";  // of alignments, which are left out: none, unknown
    std::string masked_letters = "none";     // of alignments, which do not count: marked, ends
    std::int64_t sequences = 0;        // of an alignment, at most, as its MSA; 0: the model's way
    std::int64_t extra_sequences = 0;  // and beyond them, of a model with extra blocks; likewise
    // After each text: an id; none; or auto: of a model with a tokenizer its end of text.
    std::string end_id = "auto";
    std::string order = "shuffled";  // shuffled, sorted, curriculum
    double curriculum_share = 0.3;   // of the run's documents
    std::uint64_t seed = 1;
  } data;
  struct Parallel {
    std::int64_t ranks = 4;
    std::string memory_per_rank = "0";  // "512MiB"; 0: no limit
    // world, node: shards of matrices, gradients and moments are spread over all ranks, or over
    // those of each node, whose sums of gradients nodes then exchange; auto: what is predicted to
    // be faster.
    std::string weight_domain = "auto";
    // micro-batch: weights are gathered, and their gradients summed, in each micro-batch; step:
    // once a step, and every rank holds all of them while it lasts; auto: what is predicted to be
    // faster.
    std::string gather_weights = "auto";
    std::string attention = "auto";        // auto: planned by cost; or a strategy
    std::string mlp = "auto";              // auto: the attention's weight mode when that is set
    std::string recompute = "auto";        // auto, or a level
    std::string layer_planner = "exact";   // a name of layer_planners()
    std::string batch_planner = "groups";  // which documents are split over how many ranks
    // From when a plan is asked for, two steps before its own, until the step goes without it.
    double planning_seconds = 10;
    bool offload = false;  // saved tensors may wait in host memory
    // Options of strategies by name (all_options), as in head_groups = 2; 0: the strategy's own.
    std::map<std::string, std::int64_t> options = {};
    double timeout_seconds = 60;
    std::string backend = "auto";  // auto: gloo where a launcher started processes, else local
    std::string device = "cpu";    // "cpu" or "cuda"
    std::string rendezvous;        // HOST[:PORT] where gloo's processes meet; "": the launcher's
    std::string interface;         // network interface for gloo; "": the one that leads there
  } parallel;
  struct Costs {  // what plans go by
    // Of `paradyse fit`.  auto: the one in output.folder's costs/, if there is one; measure: that
    // one, or it is made first; none: a closed form, from a few numbers taken at the start.
    std::string file = "auto";
    // Fitted costs are corrected by what steps take; false: nothing that a clock says changes
    // plans.
    bool correct = true;
    double profile_seconds = 180;  // that `paradyse profile` may take
  } costs;
  struct Train {
    std::int64_t steps = 100;     // 0: by epochs
    std::int64_t epochs = 0;      // of the documents, in place of steps; 0: by steps
    std::int64_t eval_every = 0;  // steps after which the held-out loss is measured; 0: at the end
    std::int64_t tokens_per_step = 16384;  // documents are added to a step until it has so many
    Dtype dtype = Dtype::float32;
    bool metrics_groups = true;  // metrics.jsonl says what each group was to take and took
    std::int64_t compare = 0;    // every so many steps also by the best static plan; 0: never
    // What follows a step whose loss or gradients are not finite: stop, skip (its documents,
    // without an update), rollback (to the newest checkpoint, and then without that step).
    std::string on_bad_step = "stop";
    double loss_spike = 0;  // a loss of so many times the running median is bad, too; 0: none is
  } train;
  struct Optimizer {
    double lr = 1e-3;
    double beta1 = 0.9;
    double beta2 = 0.95;
    double eps = 1e-8;
    double weight_decay = 0.1;   // decoupled; matrices only
    double max_grad_norm = 1.0;  // 0: not clipped
    std::int64_t warmup_steps = 10;
    double min_lr_ratio = 0.1;  // cosine from lr to this share of it
    bool offload = false;       // its state waits in host memory
    std::string path = {};      // a folder of moments to begin with; "": they begin as zeros
  } optimizer;
  struct Output {
    std::string folder = "runs";  // a new folder is made in it for each run
    std::string name;             // "": from the time of day
    bool trace = true;
    std::string trace_limit = "5MB";  // of its file; 0: no limit
    bool tensorboard = false;         // event files in the run's folder
    bool model = true;                // a Hugging Face folder at the end
    std::string dtype = "auto";       // of its weights; auto: train.dtype
    // Of a video model: clips that it makes at the end, as pictures, and steps from noise to each.
    std::int64_t clips = 1;
    std::int64_t sampling_steps = 25;
  } output;
  struct Checkpoint {             // all that training goes on from
    std::int64_t keep = 2;        // the newest so many; 0: none is written, not at the end either
    std::int64_t keep_every = 0;  // steps; of each so many one stays for good; 0: none does
    std::int64_t every = 0;       // steps; 0: not by steps
    double minutes = 10;          // 0: not by time
    std::int64_t failures = 3;    // in a row, of which the last ends the run
    bool async_save = false;      // written from a copy while training continues
    [[nodiscard]] bool takes_snapshots() const { return async_save && keep > 0; }
  } checkpoint;
};

// One value with its name and where it came from.
struct ConfigEntry {
  std::string key;     // "train.steps"
  std::string value;   // as TOML
  std::string origin;  // "default", "run.toml:12", "--set"
};

struct LoadedConfig {
  RunConfig config;
  std::vector<ConfigEntry> entries;  // all keys, in the order of the struct
};

// Reads `file` ("" : defaults only), then applies `settings` ("a.b=c"; c as TOML, or else a bare
// string).  Throws std::invalid_argument naming file:line, key, what stands there, what would be
// accepted, and for an unknown key or section the nearest one; also for values out of range.
LoadedConfig load_config(
    const std::filesystem::path& file, const std::vector<std::string>& settings);

// Its entries, which are what is written down of a run, name files by where they are from anywhere;
// `config` says what the user said.  Names that are no files (a preset, "auto") stay.
LoadedConfig with_absolute_paths(LoadedConfig loaded);

// A key of a run file, as documents have it.
struct ConfigKey {
  std::string key;            // "train.steps"
  std::string default_value;  // as TOML
  std::string accepted;       // "a whole number from 1"
  std::string meaning;        // a sentence or two
  std::string models = {};    // that alone know it; "": all do
  bool fixed = false;         // in a run: one that is resumed cannot change it
};
// All keys, in the order of the struct.
std::vector<ConfigKey> config_keys();

// Keys and their values as TOML, as an earlier version wrote them down, by the names of now.
std::map<std::string, std::string> with_current_names(
    const std::map<std::string, std::string>& configuration);

// docs/reference/config.md: all keys, in Markdown.
std::string config_reference();
// A run file in which every key stands as a comment, with its default.
std::string config_template();

// TOML that load_config reads back to the same configuration, each value with its origin as
// comment.
std::string to_toml(const LoadedConfig& loaded);

}  // namespace paradyse

#include "paradyse/plan/plan.h"

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>

#include "paradyse/plan/cluster.h"
#include "paradyse/plan/model_folder.h"
#include "python/bindings/bindings.h"
#include "src/plan/base/disk_file.h"
#include "src/plan/base/printable.h"
#include "src/plan/plan/plan_mark.h"

namespace paradyse::python {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> check(
    const Plan& plan,
    const ModelFolder* model,
    const Cluster* cluster,
    const std::optional<Memory>& memory,
    const std::string& dtype,
    bool training) {
  if (model == nullptr && (cluster != nullptr || memory)) {
    throw std::invalid_argument(
        "check: memory and cluster need model, from whose sizes memory is computed");
  }
  CheckContext context{.precision = precision_of(dtype_named(dtype)), .training = training};
  if (model != nullptr) {
    context.model = model->model;
  }
  if (cluster != nullptr) {
    context.memory_of_ranks =
        memory_of_ranks(memory ? with_memory(*cluster, bytes_of(*memory)) : *cluster);
  } else if (memory) {
    context.memory_per_rank = bytes_of(*memory);
  }
  return problems(plan, context);
}

// As the program, which replaces no file that it did not write.
void write(const Plan& plan, const fs::path& path, bool force) {
  if (const std::string why = force ? "" : why_not_ours(path, "a plan", kPlanMark); !why.empty()) {
    const std::string said =
        path.string() + ": " + why + "; give another path, or force=True to replace it";
    PyErr_SetString(PyExc_FileExistsError, printable(said).c_str());
    throw nb::python_error();
  }
  try {
    replace_file(path, to_json(plan));
  } catch (const std::runtime_error& error) {  // a folder, or a disk that is full
    PyErr_SetString(PyExc_OSError, printable(error.what()).c_str());
    throw nb::python_error();
  }
}

}  // namespace

void bind_plan(nb::module_& module) {
  nb::class_<PartChoice>(module, "Part", "What a part of a layer runs.")
      .def_ro("part", &PartChoice::part)
      .def_ro("strategy", &PartChoice::strategy)
      .def_prop_ro(
          "recompute",
          [](const PartChoice& self) {
            return to_string(LayerRecompute{.parts = self.recompute, .layer = self.with_layer});
          },
          "What is recomputed: 'none', 'light', 'attention-output', 'full', or with 'layer'.")
      .def_ro("offload", &PartChoice::offload, "Saved tensors wait in host memory.")
      .def_ro("options", &PartChoice::options)
      .def_ro("placements", &PartChoice::in, "How the streams that it reads are sharded.")
      .def("__repr__", [](const PartChoice& self) {
        return "<paradyse.Part " + self.part + ": " + self.strategy + ">";
      });

  nb::class_<LayerRun>(module, "LayerRun", "Equal layers in a row.")
      .def_ro("layers", &LayerRun::layers)
      .def_ro("parts", &LayerRun::choice, "Of each layer, in the order in which they run.");

  nb::class_<PlanGroup>(module, "Group", "Ranks that work on the same documents.")
      .def_ro("ranks", &PlanGroup::ranks, "Ascending.")
      .def_ro("documents", &PlanGroup::documents, "Indices into Plan.lengths; empty: idle.")
      .def_ro("program", &PlanGroup::program, "A key of Plan.programs.")
      .def_ro("shares", &PlanGroup::shares, "Of each rank in the documents; empty: even.")
      .def_prop_ro(
          "predicted_seconds", [](const PlanGroup& self) { return self.predicted.seconds; })
      .def("__repr__", [](const PlanGroup& self) {
        return "<paradyse.Group of " + std::to_string(self.ranks.size()) + " ranks, " +
               std::to_string(self.documents.size()) + " documents>";
      });

  nb::class_<PlanMicroBatch>(module, "MicroBatch", "Groups that run at the same time.")
      .def_ro("groups", &PlanMicroBatch::groups, nb::rv_policy::reference_internal)
      .def_prop_ro(
          "predicted_seconds", [](const PlanMicroBatch& self) { return self.predicted.seconds; })
      .def(
          "group_of",
          [](const PlanMicroBatch& self, int rank) -> const PlanGroup& {
            for (const PlanGroup& group : self.groups) {
              if (std::ranges::find(group.ranks, rank) != group.ranks.end()) {
                return group;
              }
            }
            throw std::out_of_range("rank " + std::to_string(rank) + " is in no group");
          },
          "rank"_a,
          nb::rv_policy::reference_internal,
          "The group of a rank.")
      .def("__len__", [](const PlanMicroBatch& self) { return self.groups.size(); });

  nb::class_<Plan>(module, "Plan", "What every rank does with a batch.")
      .def_static(
          "from_json",
          [](const std::string& text) { return plan_from_json(text, "plan"); },
          "text"_a)
      .def_static(
          "from_file",
          &read_plan,
          "path"_a,
          nb::sig("def from_file(path: str | os.PathLike[str]) -> Plan"))
      .def(
          "to_json",
          [](const Plan& self, bool one_line) {
            return one_line ? to_json_line(self) : to_json(self);
          },
          nb::kw_only(),
          "one_line"_a = false,
          "The text of its plan file, for people, or on one line as `plan batch --stream` has it.")
      .def(
          "write",
          write,
          "path"_a,
          "force"_a = false,
          nb::sig("def write(self, path: str | os.PathLike[str], force: bool = False) -> None"),
          "Replaces a plan.  Raises FileExistsError for another file, unless `force` is given.")
      .def_prop_ro(
          "hash",
          [](const Plan& self) { return hash(self); },
          "SHA-256 of what ranks do: equal plans have equal hashes, whatever they predict.")
      .def_ro("model_name", &Plan::model_name)
      .def_ro("cluster_name", &Plan::cluster_name)
      .def_ro("ranks", &Plan::ranks)
      .def_ro("sharding_group", &Plan::weight_domain, "Ranks that share the model's weights.")
      .def_ro("layers", &Plan::layers)
      .def_prop_ro(
          "lengths",
          [](const Plan& self) { return array_of(self.lengths); },
          kOwned,
          "Tokens of each document.")
      .def_prop_ro(
          "source",
          [](const Plan& self) { return array_of(self.source); },
          kOwned,
          "The line of each document in the file of lengths; empty: there was none.")
      .def_ro("programs", &Plan::programs)
      .def_ro("micro_batches", &Plan::micro_batches, nb::rv_policy::reference_internal)
      .def_prop_ro("predicted_seconds", [](const Plan& self) { return self.predicted.seconds; })
      .def_prop_ro(
          "lower_bound_seconds",
          [](const Plan& self) { return self.predicted.lower_bound_seconds; })
      .def_ro("planner", &Plan::planner_name)
      .def(nb::self == nb::self, kEquals)
      .def("__hash__", [](const Plan& self) { return std::hash<std::string>{}(hash(self)); })
      .def("__repr__", [](const Plan& self) {
        return "<paradyse.Plan of " + std::to_string(self.lengths.size()) + " documents on " +
               std::to_string(self.ranks) + " ranks, " + std::to_string(self.micro_batches.size()) +
               " micro-batches>";
      });

  module.def(
      "check",
      check,
      "plan"_a,
      "model"_a = nb::none(),
      nb::kw_only(),
      "cluster"_a = nb::none(),
      "memory"_a = nb::none(),
      "dtype"_a = "bfloat16",
      "training"_a = true,
      WithoutGil(),
      "What is wrong with a plan, a sentence each with its JSON path; empty: it is sound.  With "
      "the model also that all ranks call the same collectives, with memory or a cluster that "
      "every rank has room.");
}

}  // namespace paradyse::python

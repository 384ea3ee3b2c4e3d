#include <filesystem>
#include <functional>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "paradyse/plan/cluster.h"
#include "paradyse/plan/model_folder.h"
#include "python/bindings/bindings.h"
#include "src/plan/profile/fit.h"

namespace paradyse::python {
namespace {

namespace fs = std::filesystem;

// A file that cannot be read is the caller's mistake.
ModelFolder model_of_folder(const fs::path& path) {
  try {
    return read_model(path);
  } catch (const std::runtime_error& error) {
    throw std::invalid_argument(error.what());
  }
}

ModelFolder model_of_config(const std::string& json) {
  ModelFolder folder{.path = "config.json", .model = {}, .config_text = json};
  try {
    folder.model = model_from_config(json, "config.json", &folder.notes);
  } catch (const nlohmann::json::exception& error) {  // no std::runtime_error
    throw std::invalid_argument(std::string("config.json: is not JSON: ") + error.what());
  }
  return folder;
}

Cluster changed(
    Cluster cluster,
    const std::string& source,
    std::optional<int> ranks,
    const std::optional<Memory>& memory) {
  if (ranks) {
    cluster = with_ranks(std::move(cluster), *ranks, source);
  }
  return memory ? with_memory(std::move(cluster), bytes_of(*memory)) : cluster;
}

}  // namespace

void bind_model(nb::module_& module) {
  nb::class_<ModelFolder>(module, "Model", "The shapes of a model.  Its weights are never read.")
      .def_static(
          "from_folder",
          model_of_folder,
          "path"_a,
          nb::sig("def from_folder(path: str | os.PathLike[str]) -> Model"),
          "A Hugging Face folder (config.json), a TOML file with the keys of config.json, or a "
          "preset such as 'stdit'.")
      .def_static("from_config", model_of_config, "json"_a, "The text of a config.json.")
      .def_prop_ro(
          "name", [](const ModelFolder& self) { return self.model.name; }, "Its architecture.")
      .def_prop_ro(
          "sha256",
          [](const ModelFolder& self) { return self.model.sha256; },
          "Fingerprint of its shape, as plans have it.")
      .def_prop_ro("layers", [](const ModelFolder& self) { return self.model.layers; })
      .def_prop_ro(
          "parameters",
          [](const ModelFolder& self) {
            return matrix_elements(self.model) + vector_elements(self.model);
          },
          "Number of trained numbers, tied ones once.")
      .def_prop_ro(
          "longest",
          [](const ModelFolder& self) -> std::optional<std::int64_t> {
            const std::int64_t tokens = self.model.limits.longest.tokens;
            return tokens > 0 ? std::optional(tokens) : std::nullopt;
          },
          "Tokens that a document may have; None: any number.")
      .def_prop_ro(
          "notes",
          [](const ModelFolder& self) { return self.notes; },
          "Notes on what is read differently from what the files say.")
      .def("__repr__", [](const ModelFolder& self) {
        return "<paradyse.Model " + self.model.name + ", " + std::to_string(self.model.layers) +
               " layers>";
      });

  nb::class_<Cluster>(
      module, "Cluster", "Devices, their speeds and memory, and the links between them.")
      .def_static(
          "from_file",
          [](const fs::path& path, std::optional<int> ranks, const std::optional<Memory>& memory) {
            return changed(read_cluster(path), path.string(), ranks, memory);
          },
          "path"_a,
          nb::kw_only(),
          "ranks"_a = nb::none(),
          "memory"_a = nb::none(),
          nb::sig("def from_file(path: str | os.PathLike[str], *, ranks: int | None = None, "
                  "memory: int | str | None = None) -> Cluster"),
          "A cluster file (TOML).  ranks: so many in place of its own, whole nodes or a part of "
          "one.  "
          "memory: of each device, in bytes or as in '40GiB'.")
      .def_static(
          "from_toml",
          [](const std::string& text,
             std::optional<int> ranks,
             const std::optional<Memory>& memory) {
            return changed(cluster_from_toml(text, "cluster"), "cluster", ranks, memory);
          },
          "text"_a,
          nb::kw_only(),
          "ranks"_a = nb::none(),
          "memory"_a = nb::none(),
          "The text of such a file.")
      .def("to_toml", [](const Cluster& self) { return to_toml(self); })
      .def_ro("name", &Cluster::name)
      .def_prop_ro("ranks", &Cluster::ranks)
      .def_ro("ranks_per_node", &Cluster::ranks_per_node)
      .def_prop_ro(
          "memory",
          [](const Cluster& self) { return array_of(memory_of_ranks(self)); },
          kOwned,
          "Bytes of each rank.")
      .def(nb::self == nb::self, kEquals)
      .def("__hash__", [](const Cluster& self) { return std::hash<std::string>{}(to_toml(self)); })
      .def("__repr__", [](const Cluster& self) {
        return "<paradyse.Cluster " + self.name + ", " + std::to_string(self.ranks()) + " ranks>";
      });

  nb::class_<Costs>(module, "Costs", "Measured costs of a model's layers, of `paradyse fit`.")
      .def_static(
          "from_file",
          &read_costs,
          "path"_a,
          nb::sig("def from_file(path: str | os.PathLike[str]) -> Costs"))
      .def_prop_ro("machine", [](const Costs& self) { return self.header.machine; })
      .def_prop_ro("model", [](const Costs& self) { return self.header.model; })
      .def_prop_ro(
          "ranks", [](const Costs& self) { return self.header.ranks; }, "That were measured.")
      .def_prop_ro("dtype", [](const Costs& self) { return to_string(self.header.dtype); })
      .def_ro("best", &Costs::best, "'structured' or 'hybrid': the model with the lower error.")
      .def("__repr__", [](const Costs& self) {
        return "<paradyse.Costs of " + self.header.model + " on " + self.header.machine + ">";
      });
}

}  // namespace paradyse::python

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <faiss_flashgmm/io/MixtureFile.h>
#include <faiss_flashgmm/io/VectorWriter.h>
#include <faiss_flashgmm/io/open_vectors.h>
#include <faiss_flashgmm/tools/Console.h>
#include <faiss_flashgmm/tools/commands.h>
#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/Json.h>
#include <faiss_flashgmm/utils/Timer.h>

namespace faiss_flashgmm {

namespace {

struct Assign {
    Common common;
    std::string vectors;
    std::string mixture_file;
    std::string output;
    std::string responsibilities;
    int64_t m = 2;
    int64_t rows = -1;

    void run();
};

void Assign::run() {
    common.apply();
    const Timer timer;
    const std::unique_ptr<RowSource> source = open_vectors(vectors, rows);
    const Mixture mixture = read_mixture(mixture_file);
    FLASHGMM_THROW_IF_NOT_FMT(
            mixture.d == source->dim(),
            "%s is of %lld dimensions, %s of %lld",
            mixture_file.c_str(),
            static_cast<long long>(mixture.d),
            vectors.c_str(),
            static_cast<long long>(source->dim()));
    FLASHGMM_THROW_IF_NOT_FMT(
            m <= mixture.k,
            "-m %lld, but %s has %lld components",
            static_cast<long long>(m),
            mixture_file.c_str(),
            static_cast<long long>(mixture.k));
    const std::unique_ptr<Backend> backend = common.make_backend();
    VectorWriter ids(output, m, ElementType::int32);
    std::optional<VectorWriter> shares;
    if (!responsibilities.empty()) {
        shares.emplace(responsibilities, m);
    }
    const int64_t n = source->size();
    const int64_t chunk = backend->preferred_chunk(mixture.k, mixture.d);
    std::vector<float> buffer;
    std::vector<int64_t> components;
    std::vector<float> scores;
    std::vector<float> log_z;
    double log_likelihood = 0;
    ProgressLine line("assign", "rows", n);
    for (int64_t begin = 0; begin < n; begin += chunk) {
        const int64_t count = std::min(chunk, n - begin);
        const float* const x = read_floats(*source, begin, count, buffer);
        components.resize(count * m);
        scores.resize(count * m);
        log_z.resize(count);
        assign_to_mixture(
                *backend,
                mixture,
                count,
                x,
                m,
                components.data(),
                scores.data(),
                log_z.data());
        ids.append(count, components.data());
        for (int64_t i = 0; i < count; i++) {
            log_likelihood += log_z[i];
            for (int64_t j = 0; j < m; j++) {
                float& score = scores[i * m + j];
                score = std::exp(score - log_z[i]);
            }
        }
        if (shares) {
            shares->append(count, scores.data());
        }
        line.update(begin + count);
    }
    ids.finish();
    if (shares) {
        shares->finish();
    }
    const double seconds = timer.seconds();
    common.print(
            JsonObject()
                    .add("n", n)
                    .add("m", m)
                    .add("log_likelihood", log_likelihood / double(n))
                    .add("seconds", seconds)
                    .add("output", output),
            format("%s rows in %.2f s, log-likelihood a row %.4f\n%s",
                   short_number(double(n)).c_str(),
                   seconds,
                   log_likelihood / double(n),
                   output.c_str()));
}

} // namespace

void add_assign(CLI::App& program) {
    const auto assign = std::make_shared<Assign>();
    CLI::App& command = *program.add_subcommand(
            "assign", "Find the most responsible components of vectors");
    command.footer(
            "Example: flashgmm assign base.fvecs mixture.npy -m 2 "
            "-o components.ivecs -r responsibilities.fvecs");
    add_file(command, "vectors", assign->vectors, "Vectors to assign")
            ->required();
    add_file(command, "mixture", assign->mixture_file, "Output of fit")
            ->required();
    add_file(
            command,
            "-o,--output",
            assign->output,
            "Components, m a row, best first (.ivecs .ibin .npy)")
            ->required();
    add_file(
            command,
            "-r,--responsibilities",
            assign->responsibilities,
            "Their responsibilities (.fvecs .fbin .npy)");
    command.add_option("-m", assign->m, "Components a row")
            ->check(CLI::PositiveNumber)
            ->capture_default_str();
    add_rows(command, assign->rows);
    assign->common.add_device(command);
    assign->common.add_to(command);
    command.callback([assign] { assign->run(); });
}

} // namespace faiss_flashgmm

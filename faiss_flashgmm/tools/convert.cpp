#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <faiss_flashgmm/io/VectorWriter.h>
#include <faiss_flashgmm/io/open_vectors.h>
#include <faiss_flashgmm/tools/Console.h>
#include <faiss_flashgmm/tools/commands.h>
#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/Json.h>
#include <faiss_flashgmm/utils/Timer.h>

namespace faiss_flashgmm {

namespace {

/// Rows read at once.
constexpr int64_t kChunk = 1 << 16;

struct Convert {
    Common common;
    std::string input;
    std::string output;
    ElementType type = ElementType::float32;
    int64_t rows = -1;
    bool normalize = false;

    void run();
};

/// Rows of norm 1; a row of zeros stays one.
void normalize_rows(int64_t n, int64_t d, float* x) {
    for (int64_t i = 0; i < n; i++) {
        double squared = 0;
        for (int64_t j = 0; j < d; j++) {
            squared += double(x[i * d + j]) * x[i * d + j];
        }
        if (squared > 0) {
            const double inverse = 1 / std::sqrt(squared);
            for (int64_t j = 0; j < d; j++) {
                x[i * d + j] = float(x[i * d + j] * inverse);
            }
        }
    }
}

void Convert::run() {
    common.apply();
    const Timer timer;
    const std::unique_ptr<RowSource> source = open_vectors(input, rows);
    const int64_t n = source->size();
    const int64_t d = source->dim();
    VectorWriter writer(output, d, type);
    ProgressLine line("convert", "rows", n);
    std::vector<float> buffer;
    std::vector<float> normalized;
    for (int64_t begin = 0; begin < n; begin += kChunk) {
        const int64_t count = std::min(kChunk, n - begin);
        const float* x = read_floats(*source, begin, count, buffer);
        if (normalize) {
            normalized.assign(x, x + count * d);
            normalize_rows(count, d, normalized.data());
            x = normalized.data();
        }
        writer.append(count, x);
        line.update(begin + count);
    }
    writer.finish();
    common.print(
            JsonObject()
                    .add("n", n)
                    .add("d", d)
                    .add("seconds", timer.seconds())
                    .add("output", output),
            format("%s rows of %lld dimensions\n%s",
                   short_number(double(n)).c_str(),
                   static_cast<long long>(d),
                   output.c_str()));
}

} // namespace

void add_convert(CLI::App& program) {
    const auto convert = std::make_shared<Convert>();
    CLI::App& command = *program.add_subcommand(
            "convert", "Convert a file of vectors to another format");
    command.footer(
            "Example: flashgmm convert glove-100-angular.hdf5:train "
            "glove.f16bin --normalize\n"
            "Formats: fvecs bvecs ivecs fbin f16bin u8bin i8bin ibin npy; "
            "FILE.hdf5:DATASET is read only.");
    add_file(command, "input", convert->input, "Vectors to convert")
            ->required();
    add_file(command, "output", convert->output, "Its name says the format")
            ->required();
    add_choice<ElementType>(
            command,
            "--type",
            convert->type,
            {{"float32", ElementType::float32},
             {"float64", ElementType::float64},
             {"float16", ElementType::float16},
             {"uint8", ElementType::uint8},
             {"int8", ElementType::int8},
             {"int32", ElementType::int32}},
            "Elements of a .npy output: float32, float64, float16, uint8, int8 "
            "or int32");
    add_rows(command, convert->rows);
    command.add_flag(
            "--normalize", convert->normalize, "Scale each row to norm 1");
    convert->common.add_to(command);
    command.callback([convert] { convert->run(); });
}

} // namespace faiss_flashgmm

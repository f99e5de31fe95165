// The n-th status is that of the n-th part, with what the flash server said of its first page that
// was not read; the kernel starts with each part's parameter, in order, and has just the words of
// that part's pages before it is over, each with its page's number. What the kernel finds leaves
// while the part runs, as that part's, and before its status. From any state that the invariant
// allows, with a server and a kernel that go on and find nothing more, a part ends.
//
// All fields of a part are its number; it has 0 to 2 pages of up to 2 words, which are its number,
// too. The fields are narrow here (bench.toml).

`default_nettype none

module proof #(
  parameter int AHEAD = 2,
  parameter int CLOCKS = 0           // `progress` holds after so many; 0: only safety
) (
  input wire logic                              clk,
  input wire logic                              s_valid,
  input wire logic                              server_ready,
  input wire logic                              page_is_given,
  input wire logic [shell_pkg::STATUS_BITS-1:0] page_any_status,
  input wire logic                              start_ready,
  input wire logic                              word_ready,
  input wire logic                              found_valid,
  input wire shell_pkg::found_t                 found,
  input wire logic                              out_ready,
  input wire logic                              result_valid,
  input wire logic                              m_ready
);

  // Parts are numbered modulo 8: all fields have 3 bits.
  localparam int NUMBER_BITS = shell_pkg::OFFSET_BITS;
  localparam int LEVEL_BITS = $clog2(AHEAD) + 1;
  localparam int STATUS_BITS = shell_pkg::STATUS_BITS;
  typedef logic [NUMBER_BITS-1:0] number_t;

  function automatic [NUMBER_BITS-1:0] length_of(input number_t number);
    length_of = number % 3;
  endfunction

  logic started = CLOCKS != 0;
  always_ff @(posedge clk) started <= 1'b1;
  wire reset = !started;

  number_t in_count;        // parts that the server has
  number_t served;          // whose pages it gives
  number_t served_pages;    // of that part, that have ended
  logic    served_word;     // of the page
  number_t out_count;       // statuses

  logic                                    s_ready;
  shell_pkg::work_t                        s_work;
  logic                                    server_valid;
  logic [shell_pkg::ENDPOINT_BITS-1:0]     server_endpoint;
  logic [shell_pkg::HANDLE_BITS-1:0]       server_handle;
  logic [shell_pkg::OFFSET_BITS-1:0]       server_offset;
  logic [shell_pkg::OFFSET_BITS-1:0]       server_length;
  logic                                    page_ready;
  logic                                    start_valid;
  logic [shell_pkg::PARAMETER_BITS-1:0]    start_parameter;
  logic [shell_pkg::OFFSET_BITS-1:0]       start_length;
  logic                                    word_valid;
  logic [shell_pkg::DATA_BITS-1:0]         word;
  logic [shell_pkg::OFFSET_BITS-1:0]       word_page;
  logic                                    word_is_last;
  logic                                    is_over;
  logic                                    found_ready;
  logic                                    out_valid;
  logic [shell_pkg::ENDPOINT_BITS-1:0]     out_endpoint;
  logic [shell_pkg::AREA_BITS-1:0]         out_line;
  shell_pkg::found_t                       out;
  logic                                    result_ready;
  logic                                    m_valid;
  logic [shell_pkg::ENDPOINT_BITS-1:0]     m_endpoint;
  logic [shell_pkg::AREA_BITS-1:0]         m_line;
  logic                                    m_is_last;
  shell_pkg::outcome_t                     m_outcome;

  assign s_work.is_last = in_count[0];
  assign s_work.sequence_number = in_count;
  assign s_work.endpoint = in_count;
  assign s_work.line = in_count;
  assign s_work.handle = in_count;
  assign s_work.offset = in_count;
  assign s_work.length = length_of(in_count);
  assign s_work.parameter_word = in_count;

  // The flash server gives pages of the parts that it has taken, in order (completion_buffer).
  wire has_page = served != in_count && served_pages != length_of(served);
  wire page_valid = has_page && page_is_given;
  wire [STATUS_BITS-1:0] page_status = served_word ? shell_pkg::DONE : page_any_status;
  wire page_is_last = served_word || page_status != shell_pkg::DONE;

  accelerator_slot #(
    .AHEAD(AHEAD)
  ) slot (
    .clk, .reset, .s_valid, .s_ready, .s_work, .server_valid, .server_ready, .server_endpoint,
    .server_handle, .server_offset, .server_length, .page_valid, .page_ready, .page_data(served),
    .page_is_last, .page_status, .start_valid, .start_ready, .start_parameter, .start_length,
    .word_valid, .word_ready, .word, .word_page, .word_is_last, .is_over, .found_valid,
    .found_ready, .found, .result_valid, .result_ready, .result(out_count), .out_valid, .out_ready,
    .out_endpoint, .out_line, .out, .m_valid, .m_ready, .m_endpoint, .m_line, .m_is_last, .m_outcome
  );

  localparam int PART_BITS = 1 + 5 * NUMBER_BITS;
  wire is_running;                                // probe slot.is_running
  wire [NUMBER_BITS-1:0] pages;                   // probe slot.pages
  wire [STATUS_BITS-1:0] status;                  // probe slot.status
  wire [LEVEL_BITS-1:0] level;                    // probe slot.parts.level
  wire [LEVEL_BITS-1:0] taken;                    // probe slot.parts.taken
  wire [AHEAD*PART_BITS-1:0] memory;              // probe slot.parts.memory[*]

  logic [STATUS_BITS-1:0] wanted;                 // of the part at hand

  always_ff @(posedge clk) begin
    if (server_valid && server_ready) in_count <= in_count + 1'b1;
    if (page_valid && page_ready) begin
      served_word <= !page_is_last;
      if (page_is_last) served_pages <= served_pages + 1'b1;
      if (wanted == shell_pkg::DONE) wanted <= page_status;
    end
    if (m_valid && m_ready) begin
      out_count <= out_count + 1'b1;
      wanted <= shell_pkg::DONE;
    end
    // The server goes on when it has given all of a part, whatever the kernel does.
    if (served != in_count && served_pages == length_of(served)) begin
      served <= served + 1'b1;
      served_pages <= '0;
    end
    if (reset) begin
      in_count <= '0;
      served <= '0;
      served_pages <= '0;
      served_word <= 1'b0;
      out_count <= '0;
      wanted <= shell_pkg::DONE;
    end
  end

  wire number_t ahead = served - out_count;       // parts of which the server has given all
  number_t number;
  logic    holds;
  always_comb begin
    holds = level <= AHEAD && number_t'(in_count - out_count) == level && ahead <= level &&
            served_pages <= length_of(served);
    for (int i = 0; i < AHEAD; i++) begin
      number = out_count + i;
      if (i < level && memory[PART_BITS * ((taken + i) % AHEAD) +: PART_BITS] !=
          {number[0], number, number, number, length_of(number), number}) holds = 1'b0;
      // What the server has passed without a page had none.
      if (i < ahead && length_of(number) != '0 && !(i == 0 && is_running)) holds = 1'b0;
    end
    if (is_running && (level == '0 || status != wanted)) holds = 1'b0;
    if (!is_running && wanted != shell_pkg::DONE) holds = 1'b0;
    if (is_running && pages != (ahead == '0 ? served_pages : length_of(out_count))) holds = 1'b0;
    if ((!is_running || ahead != '0) && (served_pages != '0 || served_word)) holds = 1'b0;
    if (served_word && served_pages == length_of(served)) holds = 1'b0;
  end

  if (CLOCKS == 0) begin : safety
    always_comb begin
      if (started) begin
        a_invariant: assert (holds);
        if (server_valid) a_asked: assert (server_endpoint == in_count &&
          server_handle == in_count && server_offset == in_count &&
          server_length == length_of(in_count) && s_valid);
        a_taken: assert ((s_valid && s_ready) == (server_valid && server_ready));
        a_ahead: assert (server_valid == (s_valid && level != AHEAD));
        if (start_valid) a_start: assert (start_parameter == out_count && !is_running &&
                                          start_length == length_of(out_count));
        if (word_valid) a_word: assert (word == out_count && is_running && !is_over &&
                                        page_valid && page_status == shell_pkg::DONE &&
                                        word_page == served_pages && word_is_last == served_word);
        a_once: assert ((word_valid && word_ready) ==
                        (page_valid && page_ready && page_status == shell_pkg::DONE));
        a_over: assert (is_over == (is_running && (ahead != '0 ||
                                                   served_pages == length_of(served))));
        a_found: assert ((found_valid && found_ready) == (out_valid && out_ready));
        if (out_valid) a_out: assert (is_running && found_valid && out == found &&
                                      out_endpoint == out_count && out_line == out_count);
        a_result: assert ((result_valid && result_ready) == (m_valid && m_ready));
        if (m_valid) a_status: assert (m_endpoint == out_count && m_line == out_count &&
          m_is_last == out_count[0] && m_outcome.sequence_number == out_count &&
          m_outcome.status == wanted && m_outcome.result == out_count && is_over &&
          !found_valid);
      end
    end
  end else begin : progress
    logic [7:0] age = '0;
    logic       is_out = 1'b0;
    always_ff @(posedge clk) begin
      if (age != '1) age <= age + 1'b1;
      if (m_valid && m_ready) is_out <= 1'b1;
    end
    always_comb begin
      assume (started && s_valid && server_ready && page_is_given && start_ready && word_ready &&
              !found_valid && result_valid && m_ready);
      if (age == '0) assume (holds);
      if (age == CLOCKS) a_progress: assert (is_out);
    end
  end

endmodule

`default_nettype wire

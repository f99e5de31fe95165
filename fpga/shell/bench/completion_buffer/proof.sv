// The n-th page out is the n-th page that was asked for, word by word, or its status; a burst never
// finds its page buffer given to another page, or full; from any state that the invariant allows,
// with a card that answers in whatever order and a user that takes, words come out.
//
// A word is the number of its page, and its own place there. The fields are narrow (bench.toml).

`default_nettype none

module proof #(
  parameter int BUFFERS = 2,
  parameter int CLOCKS = 0           // `progress` holds after so many; 0: only safety
) (
  input wire logic                                clk,
  input wire logic                                s_valid,
  input wire logic [shell_pkg::STATUS_BITS-1:0]   s_status,
  input wire logic                                command_ready,
  input wire logic                                read_valid,
  input wire logic [shell_pkg::USER_TAG_BITS-1:0] read_tag,
  input wire logic                                ack_valid,
  input wire logic [shell_pkg::USER_TAG_BITS-1:0] ack_tag,
  input wire logic [shell_pkg::STATUS_BITS-1:0]   ack_status,
  input wire logic                                m_ready
);

  localparam int INDEX_BITS = $clog2(BUFFERS);
  localparam int PAGE_WORDS = shell_pkg::PAGE_WORDS;
  localparam int WORD_BITS = $clog2(PAGE_WORDS);
  localparam int DATA_BITS = shell_pkg::DATA_BITS;
  localparam int NUMBER_BITS = shell_pkg::PAGE_BITS;     // commands name the page by its number
  localparam int STATUS_BITS = shell_pkg::STATUS_BITS;
  typedef logic [NUMBER_BITS-1:0] number_t;

  logic started = CLOCKS != 0;
  always_ff @(posedge clk) started <= 1'b1;
  wire reset = !started;

  // Pages asked for, pages out, and words out of the next one.
  number_t              in_count;
  number_t              out_count;
  logic [WORD_BITS-1:0] out_word;

  logic                                s_ready;
  shell_pkg::command_t                 s_command;
  logic                                command_valid;
  shell_pkg::command_t                 command;
  logic [shell_pkg::USER_TAG_BITS-1:0] command_tag;
  logic [DATA_BITS-1:0]                read_data;
  logic                                m_valid;
  logic [DATA_BITS-1:0]                m_data;
  logic                                m_is_last;
  logic [STATUS_BITS-1:0]              m_status;

  assign s_command.operation = shell_pkg::READ;
  assign s_command.endpoint = '0;
  assign s_command.page = in_count;

  completion_buffer #(
    .BUFFERS(BUFFERS)
  ) pages (
    .clk, .reset, .s_valid, .s_ready, .s_command, .s_status, .command_valid, .command_ready,
    .command, .command_tag, .read_valid, .read_tag, .read_data, .ack_valid, .ack_tag, .ack_status,
    .m_valid, .m_ready, .m_data, .m_is_last, .m_status
  );

  wire [INDEX_BITS:0] head;                             // probe pages.head
  wire [INDEX_BITS:0] tail;                             // probe pages.tail
  wire [WORD_BITS-1:0] position;                        // probe pages.position
  wire [BUFFERS*(WORD_BITS+1)-1:0] arrived;             // probe pages.arrived[*]
  wire [BUFFERS*STATUS_BITS-1:0] statuses;              // probe pages.status[*]
  wire [BUFFERS-1:0] is_without;                        // probe pages.is_without
  wire [BUFFERS*PAGE_WORDS*DATA_BITS-1:0] memory;       // probe pages.memory[*]

  // The card: which tags it has commands for, their pages, and how much of each it has sent.
  logic [BUFFERS-1:0]             is_sent;
  logic [BUFFERS*NUMBER_BITS-1:0] sent_page;
  logic [BUFFERS*WORD_BITS-1:0]   sent_words;
  // What each page must end with, by its number modulo 2 * BUFFERS.
  logic [2*BUFFERS*STATUS_BITS-1:0] wanted;

  wire [INDEX_BITS-1:0] read_index = read_tag[INDEX_BITS-1:0];
  wire [INDEX_BITS-1:0] ack_index = ack_tag[INDEX_BITS-1:0];
  wire [WORD_BITS-1:0] read_word = sent_words[WORD_BITS*read_index +: WORD_BITS];
  assign read_data = {sent_page[NUMBER_BITS*read_index +: NUMBER_BITS], read_word};

  always_ff @(posedge clk) begin
    if (command_valid && command_ready) begin
      is_sent[command_tag[INDEX_BITS-1:0]] <= 1'b1;
      sent_page[NUMBER_BITS*command_tag[INDEX_BITS-1:0] +: NUMBER_BITS] <= command.page;
      sent_words[WORD_BITS*command_tag[INDEX_BITS-1:0] +: WORD_BITS] <= '0;
    end
    if (read_valid) begin
      sent_words[WORD_BITS*read_index +: WORD_BITS] <= read_word + 1'b1;
      if (read_word == '1) is_sent[read_index] <= 1'b0;
    end
    if (ack_valid) begin
      is_sent[ack_index] <= 1'b0;
      wanted[STATUS_BITS * (sent_page[NUMBER_BITS*ack_index +: NUMBER_BITS] % (2*BUFFERS))
             +: STATUS_BITS] <= ack_status;
    end
    if (s_valid && s_ready) begin
      in_count <= in_count + 1'b1;
      wanted[STATUS_BITS * (in_count % (2*BUFFERS)) +: STATUS_BITS] <= s_status;
    end
    if (m_valid && m_ready) begin
      out_word <= m_is_last ? '0 : out_word + 1'b1;
      if (m_is_last) out_count <= out_count + 1'b1;
    end
    if (reset) begin
      in_count <= '0;
      out_count <= '0;
      out_word <= '0;
      is_sent <= '0;
    end
  end

  // The card answers what it was asked: with the page, or before any of it with a status.
  always_comb begin
    if (read_valid) assume (started && read_tag < BUFFERS && is_sent[read_index]);
    if (ack_valid) begin
      assume (started && ack_tag < BUFFERS && is_sent[ack_index]);
      assume (sent_words[WORD_BITS*ack_index +: WORD_BITS] == '0 && ack_status != shell_pkg::DONE);
      assume (!(read_valid && read_tag == ack_tag));
    end
  end

  wire [INDEX_BITS:0] used = head - tail;
  wire number_t first = in_count - number_t'(used);    // the number of the oldest page in the ring
  wire is_end = m_valid && m_is_last;

  logic                   holds;
  logic [BUFFERS-1:0]     in_ring;
  logic [INDEX_BITS-1:0]  at;
  logic [WORD_BITS:0]     words;
  number_t                number;
  logic [STATUS_BITS-1:0] status;
  always_comb begin
    holds = used <= BUFFERS && number_t'(in_count - out_count) == used + is_end;
    in_ring = '0;
    for (int i = 0; i < BUFFERS; i++) begin
      at = tail + i;
      words = arrived[(WORD_BITS+1)*at +: WORD_BITS+1];
      number = first + i;
      status = wanted[STATUS_BITS * (number % (2*BUFFERS)) +: STATUS_BITS];
      if (i < used) begin
        in_ring[at] = 1'b1;
        if (words > PAGE_WORDS) holds = 1'b0;
        if (is_without[at] != (status != shell_pkg::DONE)) holds = 1'b0;
        if (is_without[at]) begin
          if (is_sent[at] || statuses[STATUS_BITS*at +: STATUS_BITS] != status) holds = 1'b0;
        end else begin
          if (is_sent[at] != (words < PAGE_WORDS)) holds = 1'b0;
          if (is_sent[at] && (sent_page[NUMBER_BITS*at +: NUMBER_BITS] != number ||
                              sent_words[WORD_BITS*at +: WORD_BITS] != words)) holds = 1'b0;
          for (int w = 0; w < PAGE_WORDS; w++) begin
            if (w < words && memory[DATA_BITS * (PAGE_WORDS * at + w) +: DATA_BITS] !=
                             {number, WORD_BITS'(w)}) holds = 1'b0;
          end
          if (i == 0 && position > words) holds = 1'b0;
        end
        if (i == 0 && is_without[at] && position != '0) holds = 1'b0;
      end else if (is_sent[at]) holds = 1'b0;
    end
    if (used == '0 && position != '0) holds = 1'b0;
    if (position != (is_end ? '0 : WORD_BITS'(out_word + m_valid))) holds = 1'b0;
    if (m_valid && !is_end && used == '0) holds = 1'b0;
    if (m_valid) begin
      status = wanted[STATUS_BITS * (out_count % (2*BUFFERS)) +: STATUS_BITS];
      if (m_status != status || m_is_last != (status != shell_pkg::DONE || out_word == '1))
        holds = 1'b0;
      if (status == shell_pkg::DONE && m_data != {out_count, out_word}) holds = 1'b0;
      if (status != shell_pkg::DONE && out_word != '0) holds = 1'b0;
    end
  end

  if (CLOCKS == 0) begin : safety
    always_comb begin
      if (started) begin
        a_invariant: assert (holds);
        if (read_valid) a_no_overflow: assert (in_ring[read_index] && !is_without[read_index] &&
                                               arrived[(WORD_BITS+1)*read_index +: WORD_BITS+1] <
                                               PAGE_WORDS);
        if (m_valid && m_status == shell_pkg::DONE)
          a_order: assert (m_data == {out_count, out_word});
        if (m_valid)
          a_status: assert (m_status == wanted[STATUS_BITS * (out_count % (2*BUFFERS))
                                               +: STATUS_BITS]);
        a_commands: assert (command_valid == (s_valid && s_status == shell_pkg::DONE &&
                                              used != BUFFERS));
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
      assume (started && s_valid && command_ready && m_ready);
      if (is_sent != '0) assume (read_valid || ack_valid);
      if (age == '0) assume (holds);
      if (age == CLOCKS) a_progress: assert (is_out);
    end
  end

endmodule

`default_nettype wire
